//! Readers of a file whose tasks block.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use super::{Blocking, together};
use crate::deeds::Pace;
use crate::deeds::files::{BLOCK_BYTES, Numbered, check, offset};
use crate::job::{Job, Reading};
use crate::proc;
use crate::requests::Requests;

/// Files of a system.
pub(crate) trait Files: Blocking {
    type File: Send + Sync + 'static;

    fn open(path: &Path) -> io::Result<Self::File>;
    fn read_at(file: &Self::File, buffer: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Does `job` on `S`: `job.tasks` tasks read, each one block at a time.
pub(crate) fn perform<S: Files>(job: &Job) -> Vec<Reading> {
    let job = *job;
    S::run(&job, move || {
        let file = Arc::new(S::open(Numbered::make().path()).expect("the file is there"));
        let mut pace = Pace::of(&job);
        loop {
            let cpu = proc::cpu_time();
            let requests = read_all::<S>(&file, job.tasks, pace.turns);
            let cpu = proc::cpu_time() - cpu;
            if pace.enough(requests.took) {
                break requests.readings(cpu);
            }
        }
    })
}

fn read_all<S: Files>(file: &Arc<S::File>, tasks: usize, turns: usize) -> Requests {
    let file = file.clone();
    let (took, late_ns) =
        together::<S, _>(tasks, move |index| (0..turns).map(|turn| read::<S>(&file, offset(index, turn))).collect::<Vec<_>>());
    Requests { late_ns: late_ns.concat(), count: tasks * turns, took }
}

/// Reads one block, and says how many nanoseconds that took.
fn read<S: Files>(file: &S::File, offset: u64) -> u64 {
    let mut block = [0; BLOCK_BYTES];
    let start = Instant::now();
    let got = S::read_at(file, &mut block, offset).expect("the file can be read");
    let late_ns = start.elapsed().as_nanos() as u64;
    check(offset, got, &block);
    late_ns
}
