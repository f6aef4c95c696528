//! Async code inside fibers: a fiber calls an async library as if it were plain code, and others go on meanwhile.

use std::time::Duration;

/// Stands for an async library: a service that answers over channels.
async fn ask(service: &tokio::sync::mpsc::Sender<Request>, question: u64) -> Option<u64> {
    let (answer, answered) = tokio::sync::oneshot::channel();
    service.send(Request { question, answer }).await.ok()?;
    answered.await.ok()
}

struct Request {
    question: u64,
    answer: tokio::sync::oneshot::Sender<u64>,
}

fn main() {
    sinew::run(|| {
        let (service, mut requests) = tokio::sync::mpsc::channel::<Request>(4);

        // The service is a future that a fiber runs.
        let server = sinew::spawn_future(async move {
            let mut served = 0;
            while let Some(Request { question, answer }) = requests.recv().await {
                served += u64::from(answer.send(question * question).is_ok());
            }
            served
        });

        // Its clients are plain code: they wait where they call.
        let clients: Vec<_> = (1..=10u64)
            .map(|question| {
                let service = service.clone();
                sinew::spawn(move || sinew::block_on(ask(&service, question)).expect("the service answers"))
            })
            .collect();
        let sum: u64 = clients.into_iter().map(|client| client.join().unwrap()).sum();
        drop(service);
        println!("sum of squares: {sum}; requests served: {}", server.join().unwrap());
        assert_eq!(sum, 385);

        // A wait for a future can be cut short like any other.
        let late = sinew::timeout(Duration::from_millis(5), || sinew::try_block_on(std::future::pending::<()>()));
        println!("a future that never comes: {}", late.unwrap_err());
    });
}
