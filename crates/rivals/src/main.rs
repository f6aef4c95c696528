//! `rivals`: the same work on Sinew and on its rivals, measured side by side.
//!
//! `run` measures and prints, `report` measures and writes a page, `list` says what there is. Each measurement is a child process (`child`), which does one job
//! (`job`) on one system (`systems`) with the code of its shape (`deeds`); where the job is to serve, the child is the load (`load`) and starts the server (`server`). Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly.

mod child;
mod cpu;
mod deeds;
mod job;
mod load;
mod machine;
mod poll;
mod proc;
mod report;
mod requests;
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

use clap::{Args, Parser, Subcommand};

use crate::job::{Job, Kind};
use crate::report::Origin;
use crate::rounds::Plan;
use crate::row::Row;
use crate::systems::System;
use crate::workloads::{Scale, Workload};

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
        /// Print JSON lines to standard output; all else goes to standard error.
        #[arg(long)]
        json: bool,
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
    #[arg(long = "workload", value_name = "W", value_parser = workloads::named)]
    workloads: Vec<&'static Workload>,
    /// Only this system (may be given again); all by default.
    #[arg(long = "system", value_name = "S", value_parser = systems::named)]
    systems: Vec<&'static System>,
    /// Rounds over all systems; 5 by default, 3 with --quick.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Smaller and fewer: a first answer.
    #[arg(long)]
    quick: bool,
    /// Next to nothing: shows that everything runs.
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,
}

impl Choice {
    /// The command that measures this and writes the page.
    fn command(&self) -> String {
        let mut command = String::from("cargo run --release -p rivals -- report");
        self.workloads.iter().for_each(|workload| command += &format!(" --workload {}", workload.name));
        self.systems.iter().for_each(|system| command += &format!(" --system {}", system.name));
        self.rounds.iter().for_each(|rounds| command += &format!(" --rounds {rounds}"));
        command + if self.quick { " --quick" } else { "" }
    }

    fn plan(&self) -> Plan {
        let scale = match (self.quick, self.tiny) {
            (_, true) => Scale::Tiny,
            (true, _) => Scale::Quick,
            _ => Scale::Full,
        };
        Plan {
            workloads: if self.workloads.is_empty() { workloads::ALL.iter().collect() } else { self.workloads.clone() },
            systems: if self.systems.is_empty() { systems::ALL.iter().collect() } else { self.systems.clone() },
            rounds: self.rounds.map_or(scale.rounds(), usize::from),
            scale,
        }
    }
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Run { choice, json } => run(&choice.plan(), json),
        Command::Report { choice, from, out } => report(&choice, from.as_deref(), &out),
        Command::List => list(),
        Command::Child { system, job } => perform(system, &job),
        Command::Server { system, job } => server::serve(system, &job),
        Command::Spin => server::spin(),
    }
}

fn run(plan: &Plan, json: bool) -> ExitCode {
    machine::description().iter().for_each(|line| eprintln!("{line}"));
    plan.carry_out(|rows| {
        if json {
            rows.iter().for_each(|row| println!("{}", row.json()));
        } else {
            print!("{}", table::of(rows));
        }
    });
    eprintln!("load average after: {}", machine::load_average());
    ExitCode::SUCCESS
}

fn report(choice: &Choice, from: Option<&Path>, out: &Path) -> ExitCode {
    let written = match from {
        Some(file) => read(file),
        None => Ok(measure(choice)),
    };
    let written = written.and_then(|(origin, rows)| {
        report::write(out, &origin, &rows).map_err(|error| format!("the page cannot be written to {}: {error}", out.display()))
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

fn measure(choice: &Choice) -> (Origin, Vec<Row>) {
    let mut rows = Vec::new();
    let mut description = machine::description();
    description.iter().for_each(|line| eprintln!("{line}"));
    choice.plan().carry_out(|more| {
        eprint!("{}", table::of(more));
        rows.extend_from_slice(more);
    });
    description.push(format!("load average after: {}", machine::load_average()));
    (Origin { command: choice.command(), date: machine::today(), description }, rows)
}

/// Figures of an earlier run. The file does not say where they were measured, so the page says what it knows.
fn read(file: &Path) -> Result<(Origin, Vec<Row>), String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{} cannot be read: {error}", file.display()))?;
    let rows = Row::read_all(&text).map_err(|error| format!("{}: {error}", file.display()))?;
    let modified = fs::metadata(file).and_then(|metadata| metadata.modified());
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let origin = Origin {
        command: format!("cargo run --release -p rivals -- report --from {name}"),
        date: modified.map_or_else(|_| "an unknown day".into(), machine::date),
        description: vec![
            format!("machine that wrote the page: {}", machine::machine()),
            format!("versions in its build: {}", machine::versions().join(", ")),
        ],
    };
    Ok((origin, rows))
}

fn list() -> ExitCode {
    println!("workloads:");
    for workload in workloads::ALL {
        println!("  {:<17} {}", workload.name, workload.about);
        println!("  {:<17} on {}", "", workloads::systems(workload).map(|system| system.name).collect::<Vec<_>>().join(", "));
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
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn the_page_names_the_command_that_was_given() {
        let line = "cargo run --release -p rivals -- report --workload skynet --system go --rounds 2 --quick";
        let arguments = line.split(' ').skip_while(|&word| word != "--").map(|word| if word == "--" { "rivals" } else { word });
        let Command::Report { choice, .. } = Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{error}")).command else {
            panic!("it is a report")
        };
        assert_eq!(choice.command(), line);
    }
}
