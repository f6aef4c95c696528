//! A pool of workers that take jobs from one channel, each job with its own channel for the answer.

use sinew::chan::{bounded, oneshot};

struct Job {
    word: &'static str,
    answer: oneshot::Sender<Result<String, String>>,
}

/// What a worker does with a job: it may fail, and it may panic.
fn shout(word: &str) -> Result<String, String> {
    match word {
        "" => Err(String::from("nothing to shout")),
        "bomb" => panic!("this job kills its worker's attempt, not the worker"),
        word => Ok(word.to_uppercase()),
    }
}

fn main() {
    std::panic::set_hook(Box::new(|_| ()));
    let (jobs, queue) = bounded::<Job>(8);
    let workers: Vec<_> = (0..4)
        .map(|_| {
            let queue = queue.clone();
            sinew::spawn(move || {
                let mut done = 0;
                for Job { word, answer } in queue {
                    // A fiber of its own, so that a panic ends the job alone: its answer is dropped unsent.
                    let attempt = sinew::spawn(move || answer.send(shout(word)));
                    drop(attempt.join());
                    done += 1;
                }
                done
            })
        })
        .collect();
    drop(queue);

    let words = ["plain", "blocking", "", "code", "bomb", "a million of it"];
    let answers = words.map(|word| {
        let (answer, receiver) = oneshot();
        jobs.send(Job { word, answer }).expect("the workers are there");
        receiver
    });
    let answers = answers.map(|answer| answer.recv().unwrap_or_else(|_| Err(String::from("the job ended without an answer"))));
    for (word, answer) in words.iter().zip(&answers) {
        println!("{word:?}: {answer:?}");
    }
    // No more jobs: the workers' loops end.
    drop(jobs);
    let done: usize = workers.into_iter().map(|worker| worker.join().unwrap()).sum();
    assert_eq!(done, words.len());
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 4);
}
