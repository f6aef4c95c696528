//! `rivals`: the same work on Sinew and on its rivals, measured side by side.
//!
//! `run` measures and prints (two systems at once: `duel`), `report` measures and writes a page, `list` says what there is. Each measurement is a child process (`child`), which does one job
//! (`job`) on one system (`systems`) with the code of its shape (`deeds`); where the job is to serve, the child is the load (`load`) and starts the server (`server`). Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly.

mod child;
mod cpu;
mod deeds;
mod duel;
mod job;
mod load;
mod machine;
mod poll;
mod proc;
mod report;
mod requests;
mod results;
mod rounds;
mod row;
mod server;
mod stats;
mod systems;
mod table;
mod targets;
mod workloads;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};

use crate::job::{Job, Kind};
use crate::results::{Results, Run};
use crate::rounds::Plan;
use crate::row::Row;
use crate::systems::System;
use crate::workloads::{Chosen, Scale, Workload};

/// The same work on Sinew and on its rivals, measured side by side.
#[derive(Parser)]
#[command(name = "rivals", version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures, and prints a table (or JSON lines) per workload.
    Run {
        #[command(flatten)]
        choice: Choice,
        /// Print JSON lines to standard output, a row each; all else goes to standard error.
        #[arg(long)]
        json: bool,
        /// Run the two systems that are named at the same time, and tell also how many times the second one's figures the first one's are: what a host does whose speed changes, it does to both.
        #[arg(long, requires = "systems")]
        at_once: bool,
    },
    /// Measures, and writes a page with charts.
    Report {
        #[command(flatten)]
        choice: Choice,
        /// Do not measure: take the JSON lines of this file.
        #[arg(long, value_name = "FILE")]
        from: Option<PathBuf>,
        /// Where `rivals.md` and the folder `rivals` go.
        #[arg(long, value_name = "DIR", default_value = "docs")]
        out: PathBuf,
    },
    /// Lists workloads and systems.
    List,
    /// Does one job in this process and prints its readings.
    #[command(name = child::SUBCOMMAND, hide = true)]
    Child {
        #[arg(value_parser = systems::named)]
        system: &'static System,
        #[command(flatten)]
        job: Job,
    },
    /// Serves a job in this process.
    #[command(name = server::SUBCOMMAND, hide = true)]
    Server {
        #[arg(value_parser = systems::named)]
        system: &'static System,
        #[command(flatten)]
        job: Job,
    },
    /// Keeps the server's CPU busy.
    #[command(name = server::SPINNER, hide = true)]
    Spin,
}

/// What to measure, and how much.
#[derive(Args)]
struct Choice {
    /// Only this workload (may be given again); all by default.
    #[arg(long = "workload", value_name = "W", value_parser = workloads::chosen)]
    workloads: Vec<Chosen>,
    /// Only this system (may be given again); all by default.
    #[arg(long = "system", value_name = "S", value_parser = systems::named)]
    systems: Vec<&'static System>,
    /// Rounds over all systems; 5 by default, 3 with --quick and --short.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// So many workers for each workload, and not as many as it has by default: for comparing settings, not systems.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    workers: Option<u16>,
    /// A first answer in two minutes: short runs of the first workloads on the best known systems; with --workload or --system the same as --short.
    #[arg(long)]
    quick: bool,
    /// Short runs of everything, or of what is named: with --rounds 5 twenty minutes.
    #[arg(long, conflicts_with = "quick")]
    short: bool,
    /// Next to nothing: shows that everything runs.
    #[arg(long, hide = true, conflicts_with_all = ["quick", "short"])]
    tiny: bool,
}

/// What a first answer may take, with the slowest child that its last moment can begin.
const FIRST_ANSWER: Duration = Duration::from_secs(120);

impl Choice {
    /// The command that was given, if it was `subcommand`.
    fn command(&self, subcommand: &str) -> String {
        let mut command = format!("cargo run --release -p rivals -- {subcommand}");
        self.workloads.iter().for_each(|workload| command += &format!(" --workload {}", workload.name));
        self.systems.iter().for_each(|system| command += &format!(" --system {}", system.name));
        self.rounds.iter().for_each(|rounds| command += &format!(" --rounds {rounds}"));
        self.workers.iter().for_each(|workers| command += &format!(" --workers {workers}"));
        [(self.quick, " --quick"), (self.short, " --short")].iter().filter(|(given, _)| *given).for_each(|(_, word)| command += word);
        command
    }

    fn scale(&self) -> Scale {
        match (self.quick || self.short, self.tiny) {
            (_, true) => Scale::Tiny,
            (true, _) => Scale::Short,
            _ => Scale::Full,
        }
    }

    /// Whether what is measured is chosen so that there is an answer soon: nobody has named anything.
    fn is_first_answer(&self) -> bool {
        self.quick && self.workloads.is_empty() && self.systems.is_empty()
    }

    fn plan(&self) -> Plan {
        let scale = self.scale();
        let rounds = self.rounds.map_or(scale.rounds(), usize::from);
        let workers = self.workers.map(usize::from);
        if self.is_first_answer() {
            let workloads = workloads::FIRST.iter().map(|name| workloads::named(name).expect("it is in the list")).collect();
            let systems = systems::FIRST.iter().map(|name| systems::named(name).expect("it is in the list")).collect();
            let time = FIRST_ANSWER - Duration::from_secs(scale.limit_seconds());
            return Plan { workloads, systems, rounds, workers, scale, end: Some(Instant::now() + time) };
        }
        let chosen = || self.workloads.iter().flat_map(|chosen| chosen.workloads.iter().copied()).collect();
        let workloads = if self.workloads.is_empty() { workloads::ALL.iter().collect() } else { chosen() };
        let systems = if self.systems.is_empty() { systems::ALL.iter().collect() } else { self.systems.clone() };
        Plan { workloads, systems, rounds, workers, scale, end: None }
    }

    /// Refuses what would leave a name that was given without a row.
    ///
    /// # Errors
    /// Names a workload that has none of the systems asked for, or a system that has none of the workloads asked for, and the systems that there are.
    fn check(&self, plan: &Plan) -> Result<(), String> {
        let on = |workload: &Workload| {
            let names = systems::ALL.iter().filter(|system| plan.has(workload, system)).map(|system| system.name);
            format!("{} is measured on: {}", workload.name, names.collect::<Vec<_>>().join(", "))
        };
        let lonely = |workload: &&&Workload| !plan.systems.iter().any(|system| plan.has(workload, system));
        if let Some(workload) = plan.workloads.iter().filter(|_| !self.workloads.is_empty()).find(lonely) {
            return Err(format!("{} is not measured on what --system names; {}", workload.name, on(workload)));
        }
        let idle = |system: &&&System| !plan.workloads.iter().any(|workload| plan.has(workload, system));
        if let Some(system) = self.systems.iter().find(idle) {
            let there = plan.workloads.iter().map(|workload| on(workload)).collect::<Vec<_>>();
            return Err(format!("{} does nothing of what --workload names; {}", system.name, there.join("; ")));
        }
        Ok(())
    }

    /// The two systems that are to run at once.
    ///
    /// # Errors
    /// If they are not two, or a workload is not for both.
    fn pair(&self, plan: &Plan) -> Result<[&'static System; 2], String> {
        let &[one, other] = &self.systems[..] else {
            return Err(format!("--at-once is for two systems, and --system names {}", self.systems.len()));
        };
        let lonely = |workload: &&&Workload| ![one, other].iter().all(|system| plan.has(workload, system));
        match plan.workloads.iter().filter(|_| !self.workloads.is_empty()).find(lonely) {
            Some(workload) => Err(format!("{} is not for both {} and {}", workload.name, one.name, other.name)),
            None => Ok([one, other]),
        }
    }

    /// Measures, hands the rows of each workload to `done`, and says what a first answer has left out. Exits with 2 if what was asked for is not there.
    fn measure(&self, subcommand: &str, at_once: bool, mut done: impl FnMut(&[Row])) {
        let plan = self.plan();
        let checked = self.check(&plan).and_then(|()| if at_once { self.pair(&plan).map(Some) } else { Ok(None) });
        let pair = checked.unwrap_or_else(|message| Cli::command().error(ErrorKind::ValueValidation, message).exit());
        let mut run = Run::begin(self.command(subcommand));
        run.lines().iter().for_each(|line| eprintln!("{line}"));
        let tell = |mut rows: Vec<Row>| {
            run.tell(&mut rows);
            done(&rows);
        };
        let cut = match pair {
            Some(pair) => {
                duel::carry_out(&plan, pair, tell);
                Vec::new()
            }
            None => plan.carry_out(tell),
        };
        eprintln!("load average after: {}", machine::load_average());
        if self.is_first_answer() {
            eprintln!("{}", left_out(&plan, &cut));
        }
    }
}

/// What a first answer does not tell, and how to be told.
fn left_out(plan: &Plan, cut: &[String]) -> String {
    let workloads = workloads::ALL.iter().map(|workload| workload.name).filter(|name| plan.workloads.iter().all(|one| one.name != *name));
    let systems = systems::ALL.iter().map(|system| system.name).filter(|name| plan.systems.iter().all(|one| one.name != *name));
    let join = |names: Vec<&str>| names.join(", ");
    let mut text = format!("left out by --quick: workloads {}; systems {}", join(workloads.collect()), join(systems.collect()));
    if !cut.is_empty() {
        text += &format!("\nthe two minutes were over: fewer rounds, or none, of {}", cut.join(", "));
    }
    text + "\n--quick --workload W measures any of them on all systems; --short measures everything, with --rounds 5 in twenty minutes"
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if !matches!(command, Command::Child { .. } | Command::Server { .. } | Command::Spin) {
        end_with_the_reader();
    }
    match command {
        Command::Run { choice, json, at_once } => run(&choice, json, at_once),
        Command::Report { choice, from, out } => report(&choice, from.as_deref(), &out),
        Command::List => list(),
        Command::Child { system, job } => perform(system, &job),
        Command::Server { system, job } => server::serve(system, &job),
        Command::Spin => server::spin(),
    }
}

/// Lets a pipe whose reader has gone end this process without a word, as in `rivals list | head -1`. Not for children: what serves has sockets, which end in the same way.
fn end_with_the_reader() {
    // SAFETY: no handler is installed, and no other thread runs yet.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

fn run(choice: &Choice, json: bool, at_once: bool) -> ExitCode {
    let subcommand = format!("run{}{}", if json { " --json" } else { "" }, if at_once { " --at-once" } else { "" });
    choice.measure(&subcommand, at_once, |rows| {
        if json {
            rows.iter().for_each(|row| println!("{}", row.json()));
        } else {
            print!("{}", table::of(rows));
        }
    });
    ExitCode::SUCCESS
}

fn report(choice: &Choice, from: Option<&Path>, out: &Path) -> ExitCode {
    let results = match from {
        Some(file) => read(file),
        None => Ok(measure(choice)),
    };
    let written = results.and_then(|results| {
        report::write(out, &results).map_err(|error| format!("the page cannot be written to {}: {error}", out.display()))
    });
    match written {
        Ok(()) => {
            println!("{}", out.join("rivals.md").display());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(choice: &Choice) -> Results {
    let mut rows = Vec::new();
    choice.measure("report", false, |more| {
        eprint!("{}", table::of(more));
        rows.extend_from_slice(more);
    });
    Results { rows }
}

/// Figures of earlier runs.
fn read(file: &Path) -> Result<Results, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    Results::read(&text).map_err(|error| format!("{}: {error}", file.display()))
}

fn list() -> ExitCode {
    println!("workloads:");
    for workload in workloads::ALL {
        println!("  {:<17} {}", workload.name, workload.about);
        println!("  {:<17} on {}", "", workloads::systems(workload).map(|system| system.name).collect::<Vec<_>>().join(", "));
    }
    println!("other names of workloads:");
    for (name, names) in workloads::OTHER_NAMES {
        println!("  {name:<17} {}", names.join(" and "));
    }
    println!("systems:");
    for system in systems::ALL {
        let version = (system.version)().unwrap_or_else(|why| why);
        println!("  {:<17} {version}: {}", system.name, system.about);
    }
    ExitCode::SUCCESS
}

fn perform(system: &System, job: &Job) -> ExitCode {
    let readings = if job.deed.kind() == Kind::Server { load::measure(system, job) } else { (system.perform)(job) };
    readings.iter().for_each(|reading| println!("{reading}"));
    // Tasks that wait for ever are still there: what the process owns goes with it.
    std::process::exit(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    fn choice(line: &str) -> Choice {
        let arguments = line.split(' ').skip_while(|&word| word != "--").map(|word| if word == "--" { "rivals" } else { word });
        match Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}")).command {
            Command::Run { choice, .. } | Command::Report { choice, .. } => choice,
            _ => panic!("{line} measures nothing"),
        }
    }

    #[test]
    fn the_page_names_the_command_that_was_given() {
        for (subcommand, options) in [
            ("report", "--workload skynet --system go --rounds 2 --workers 8 --quick"),
            ("run --json", "--rounds 5 --short"),
            ("run", "--workload chan-2to1"),
            ("run", "--rounds 9"),
        ] {
            let line = format!("cargo run --release -p rivals -- {subcommand} {options}");
            assert_eq!(choice(&line).command(subcommand), line);
        }
    }

    #[test]
    fn a_name_that_would_have_no_row_is_refused() {
        let check = |line: &str| choice(line).check(&choice(line).plan());
        for (line, wants) in [
            ("-- run --workload yield-1 --system monoio", ["yield-1 is not measured", "sinew, ", "smol"]),
            ("-- run --workload echo-50 --workload yield-1 --system monoio", ["yield-1 is not measured", "tokio-ct", "threads"]),
            ("-- run --workload yield-1 --system sinew --system monoio", ["monoio does nothing", "yield-1 is measured on: sinew", "go"]),
            ("-- run --workers 2 --workload yield-1 --system tokio-ct", ["yield-1 is not measured", "tokio-mt", "smol"]),
        ] {
            let error = check(line).expect_err(line);
            wants.iter().for_each(|want| assert!(error.contains(want), "{line}: {want} is missing: {error}"));
        }
        for line in ["-- run --quick", "-- run --short", "-- run --system monoio", "-- run --workload curve", "-- run --tiny --system may"]
        {
            assert_eq!(check(line), Ok(()), "{line}");
        }
        assert_eq!(check("-- run --workload yield-1 --workload echo-50 --system sinew --system sinew-uring"), Ok(()));
    }

    fn names(plan: &Plan) -> (Vec<&str>, Vec<&str>) {
        (plan.workloads.iter().map(|workload| workload.name).collect(), plan.systems.iter().map(|system| system.name).collect())
    }

    #[test]
    fn a_first_answer_is_of_the_first_workloads_and_ends_in_time() {
        let begun = Instant::now();
        let plan = choice("-- run --quick").plan();
        assert_eq!(names(&plan), (workloads::FIRST.to_vec(), systems::FIRST.to_vec()));
        assert_eq!((plan.rounds, plan.scale), (3, Scale::Short));
        let last_child = Duration::from_secs(plan.scale.limit_seconds());
        let end = plan.end.expect("a first answer ends") + last_child;
        assert!(
            begun + FIRST_ANSWER <= end && end <= Instant::now() + Duration::from_secs(120),
            "it ends {:?} after it began",
            end - begun
        );
    }

    #[test]
    fn what_is_named_is_measured_whole_and_short_is_everything() {
        for line in ["-- run --quick --workload curve", "-- run --short --workload curve"] {
            let plan = choice(line).plan();
            assert_eq!(names(&plan), (vec!["curve"], systems::ALL.iter().map(|system| system.name).collect()), "{line}");
            assert_eq!((plan.scale, plan.end), (Scale::Short, None), "{line}");
        }
        let plan = choice("-- run --workload chan-2to1 --workload chan-ping-pong").plan();
        assert_eq!(names(&plan).0, ["chan-2to1x1", "chan-2to1x2", "ping-pong-1"]);
        let plan = choice("-- run --quick --system smol").plan();
        assert_eq!((plan.workloads.len(), plan.systems.len(), plan.end), (workloads::ALL.len(), 1, None));
        let plan = choice("-- run --short --rounds 5").plan();
        assert_eq!((plan.workloads.len(), plan.systems.len(), plan.rounds), (workloads::ALL.len(), systems::ALL.len(), 5));
        assert_eq!((plan.scale, plan.end), (Scale::Short, None));
        assert!(Cli::try_parse_from(["rivals", "run", "--quick", "--short"]).is_err());
    }

    #[test]
    fn a_first_answer_says_what_it_leaves_out() {
        let plan = choice("-- run --quick").plan();
        let text = left_out(&plan, &["skynet".into()]);
        for name in ["echo-50", "sinew-migratable", "of skynet", "--short", "--workload W"] {
            assert!(text.contains(name), "{name} is missing: {text}");
        }
        let told = text.split(['\n', ' ', ',', ';']).collect::<Vec<_>>();
        assert!(!told.contains(&"yield-1") && !told.contains(&"tokio-mt"), "{text}");
        assert!(!left_out(&plan, &[]).contains("over"));
    }
}
