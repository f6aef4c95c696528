//! `rivals`: the same work on Sinew and on its rivals, measured side by side.
//!
//! `run` measures and prints, `report` measures and writes a page, `list` says what there is. Each measurement is a child process (`child`), which does one job
//! (`job`) on one system (`systems`) with the code of its shape (`work`). Exit codes: 0 done, 1 it failed, 2 it was asked for wrongly.

mod child;
mod job;
mod machine;
mod proc;
mod rounds;
mod row;
mod stats;
mod systems;
mod table;
mod work;
mod workloads;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::job::Job;
use crate::rounds::Plan;
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
    /// Smaller and fewer: a first answer in about two minutes.
    #[arg(long)]
    quick: bool,
    /// Next to nothing: shows that everything runs.
    #[arg(long, hide = true, conflicts_with = "quick")]
    tiny: bool,
}

impl Choice {
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
        Command::List => list(),
        Command::Child { system, job } => perform(system, &job),
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
    let readings = (system.perform)(job);
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
}
