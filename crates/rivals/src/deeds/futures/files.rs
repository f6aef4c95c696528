//! Readers of a file whose tasks are futures. It follows the one of `blocking`.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use super::{Futures, together};
use crate::deeds::Pace;
use crate::deeds::files::{BLOCK_BYTES, Numbered, check, offset};
use crate::job::{Job, Reading};
use crate::proc;
use crate::requests::Requests;

/// A buffer that a read takes away and gives back.
pub(crate) type Block = Box<[u8; BLOCK_BYTES]>;

/// Files of a system. They all read on threads of their own: a future cannot lend its buffer to the kernel.
pub(crate) trait Files: Futures {
    fn read_at(file: Arc<File>, block: Block, offset: u64) -> impl Future<Output = (io::Result<usize>, Block)> + Send;
}

/// Does `job` on `S`: `job.tasks` tasks read, each one block at a time.
pub(crate) fn perform<S: Files>(job: &Job) -> Vec<Reading> {
    let job = *job;
    let file = Arc::new(File::open(Numbered::make().path()).expect("the file is there"));
    S::run(&job, async move {
        let mut pace = Pace::of(&job);
        loop {
            let cpu = proc::cpu_time();
            let requests = read_all::<S>(&file, job.tasks, pace.turns).await;
            let cpu = proc::cpu_time() - cpu;
            if pace.enough(requests.took) {
                break requests.readings(cpu);
            }
        }
    })
}

async fn read_all<S: Files>(file: &Arc<File>, tasks: usize, turns: usize) -> Requests {
    let (took, late_ns) = together::<S, _>(tasks, |index| {
        let file = file.clone();
        async move {
            let (mut block, mut late_ns) = (Box::new([0; BLOCK_BYTES]), Vec::with_capacity(turns));
            for turn in 0..turns {
                let (offset, start) = (offset(index, turn), Instant::now());
                let (got, read) = S::read_at(file.clone(), block, offset).await;
                late_ns.push(start.elapsed().as_nanos() as u64);
                check(offset, got.expect("the file can be read"), &read);
                block = read;
            }
            late_ns
        }
    })
    .await;
    Requests { late_ns: late_ns.concat(), count: tasks * turns, took }
}
