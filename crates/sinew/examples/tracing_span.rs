//! Spans of the `tracing` crate that follow their fiber.
//!
//! `tracing` keeps the spans that are entered in a thread-local, which all fibers of a worker share: without care, an event of one fiber
//! would be logged inside the spans of another that has suspended. Here a fiber takes its spans off the thread when it suspends, and puts
//! them back when it goes on. Everything is checked, so the example is a test too.

use std::cell::RefCell;
use std::rc::Rc;

use tracing::{Span, dispatcher, info, info_span};

/// Makes the spans of the current fiber its own.
fn keep_spans() {
    let kept = Rc::new(RefCell::new(Vec::<Span>::new()));
    let taken = kept.clone();
    sinew::on_suspend(move || {
        dispatcher::get_default(|dispatch| {
            while let Some(id) = Span::current().id() {
                taken.borrow_mut().push(Span::current());
                dispatch.exit(&id);
            }
        });
    });
    sinew::on_resume(move || {
        let spans = kept.take();
        dispatcher::get_default(|dispatch| spans.iter().rev().filter_map(Span::id).for_each(|id| dispatch.enter(&id)));
    });
}

/// The name of the innermost span that is entered on this thread.
fn current_span() -> Option<&'static str> {
    Span::current().metadata().map(|metadata| metadata.name())
}

fn request(number: u32) {
    keep_spans();
    assert_eq!(current_span(), None, "a span of another fiber");
    let _request = info_span!("request", number).entered();
    for step in 0..3 {
        let _step = info_span!("step", step).entered();
        sinew::yield_now(); // other requests run now, on this very thread
        info!("done");
        assert_eq!(current_span(), Some("step"));
    }
    assert_eq!(current_span(), Some("request"));
}

fn main() {
    tracing_subscriber::fmt().without_time().with_target(false).with_ansi(false).init();
    let runtime = sinew::Runtime::builder().workers(1).build().expect("one worker");
    runtime.run(|| {
        let requests: Vec<_> = (1..=3).map(|number| sinew::spawn(move || request(number))).collect();
        requests.into_iter().for_each(|request| request.join().expect("its spans were its own"));
    });
}
