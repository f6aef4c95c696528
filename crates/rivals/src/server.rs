//! A server in a process of its own: started, asked for its CPU time, ended.
//!
//! The process that measures is the load; the server is its child and dies with it. A server says where it listens by one line on standard output. Where the job says so
//! (`Deed::is_pinned`) it stays on the first CPU, and the load on the last.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::cpu;
use crate::job::Job;
use crate::proc;
use crate::systems::System;

/// The hidden subcommand that a server is started with.
pub(crate) const SUBCOMMAND: &str = "server";
/// The one that a process is started with which only spins.
pub(crate) const SPINNER: &str = "spin";
/// Where servers listen: the kernel chooses the port.
pub(crate) const ANY_PORT: &str = "127.0.0.1:0";
/// Open files that a process with many connections may need.
const FILES: u64 = 100_000;

/// A running server.
pub(crate) struct Server {
    child: Child,
    spinner: Option<Child>,
    address: SocketAddr,
}

impl Server {
    /// Starts `system` as a server for `job`, and waits until it listens.
    ///
    /// # Panics
    /// If it does not; its own complaint is on standard error.
    pub(crate) fn start(system: &System, job: &Job) -> Self {
        let mut child =
            us(SUBCOMMAND).arg(system.name).args(job.arguments()).stdout(Stdio::piped()).spawn().expect("a server can be started");
        let mut line = String::new();
        let said = BufReader::new(child.stdout.take().expect("its output is ours")).read_line(&mut line);
        let address = said.ok().and_then(|_| line.trim().parse().ok());
        let spinner = job.deed.is_shared().then(|| us(SPINNER).spawn().expect("a spinning process can be started"));
        match address {
            Some(address) => Self { child, spinner, address },
            None => {
                let _ = child.kill();
                panic!("the server does not listen ({:?})", child.wait());
            }
        }
    }

    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// CPU time that all its threads have used.
    pub(crate) fn cpu_time(&self) -> Duration {
        proc::cpu_time_of(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        for child in std::iter::once(&mut self.child).chain(&mut self.spinner) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn us(subcommand: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a program knows its own path"));
    command.arg(subcommand).stdin(Stdio::null());
    command
}

/// What the server's process does.
pub(crate) fn serve(system: &System, job: &Job) -> ! {
    die_with_parent();
    raise_file_limit();
    if job.deed.is_pinned() {
        cpu::stay_on(cpu::allowed()[0]);
    }
    (system.perform)(job);
    panic!("{} stopped serving", system.name);
}

/// What the process does that keeps the server's CPU busy.
pub(crate) fn spin() -> ! {
    die_with_parent();
    cpu::stay_on(cpu::allowed()[0]);
    loop {
        std::hint::spin_loop();
    }
}

/// Says where a server listens.
pub(crate) fn announce(address: SocketAddr) {
    let mut out = std::io::stdout();
    writeln!(out, "{address}").and_then(|()| out.flush()).expect("the load listens");
}

/// Lets this process have as many open files as the machine allows it, up to what ten thousand connections take.
pub(crate) fn raise_file_limit() {
    let wanted = libc::rlimit { rlim_cur: FILES, rlim_max: FILES };
    // SAFETY: the limits are plain data that live through the calls.
    unsafe {
        if libc::setrlimit(libc::RLIMIT_NOFILE, &wanted) != 0 {
            let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        }
    }
}

fn die_with_parent() {
    // SAFETY: the call takes numbers only.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}
