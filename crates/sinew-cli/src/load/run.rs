//! The fibers of the load, and what they record.
//!
//! All connect first, a few at a time; then all begin at the same moment. Each worker has a record of its own, which its fibers share: a fiber never changes thread, so
//! the lock of a record is always free.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use indicatif::{HumanCount, ProgressBar, ProgressStyle};
use sinew::sync::{Event, Latch, OnceLock, Semaphore};
use sinew::{JoinHandle, Runtime};

use super::client::{Client, Fault, Talk, Then};
use crate::failure::Failure;
use crate::interrupt;

/// Connections that are being opened at once: fewer than common servers let wait, since one that finds no room is tried again a second later.
const OPENING_MAX: usize = 100;

/// After a fault a connection rests for so long: a server that is gone is not asked more often than that. Arbitrary.
const FAULT_PAUSE: Duration = Duration::from_millis(100);

/// How long answers may take after the last request; then they are given up.
const GRACE: Duration = Duration::from_secs(2);

/// How often the line is drawn, and who has ended is looked at.
const DRAW_PERIOD: Duration = Duration::from_millis(100);
const END_PERIOD: Duration = Duration::from_millis(5);

/// What the histogram counts apart at most, and its significant digits.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;
const LATENCY_DIGITS: u8 = 3;

const NS_PER_SECOND: u128 = 1_000_000_000;

const BAR: &str = "{prefix:<8} [{wide_bar:.cyan/blue}] {msg}";

/// The text for requests that had no answer when all was over.
const UNANSWERED: &str = "no answer by the end";

/// What is to be done.
pub(super) struct Plan {
    /// Of the server, one at least: the first that answers whoever connects first is the one that all use; if none does, each connection tries them all.
    pub(super) addrs: Vec<SocketAddr>,
    pub(super) talk: Talk,
    pub(super) connections: usize,
    pub(super) duration: Duration,
    /// Requests per second; none for a closed loop.
    pub(super) rate: Option<usize>,
    /// Whether the beginning and the end of the time are said on stdout.
    pub(super) announces: bool,
    /// Cuts it short when it is set.
    pub(super) stop: Arc<Event>,
}

/// What came of it.
pub(super) struct Outcome {
    pub(super) latencies_ns: Histogram<u64>,
    /// By how much the load itself was late to send, of requests that waited for their moment: a part of their latencies that is not the server's.
    pub(super) sent_late_ns: Histogram<u64>,
    /// Answers that came before the time was over.
    pub(super) in_time: u64,
    /// Requests that were due and were not sent.
    pub(super) unsent: u64,
    /// By name.
    pub(super) errors: BTreeMap<String, u64>,
    /// How long all needed to connect.
    pub(super) connecting: Duration,
    /// How long requests were sent.
    pub(super) took: Duration,
    pub(super) cut_short: bool,
    /// Requests that had no answer when it was cut short.
    pub(super) in_flight: u64,
}

/// Puts the load on from fibers of `runtime`, and waits for its end.
///
/// # Errors
/// If no connection could be opened.
pub(super) fn drive(runtime: &Runtime, plan: Plan) -> Result<Outcome, Failure> {
    let workers = runtime.metrics().workers.len();
    let run = Arc::new(Run::new(plan, workers));
    let began_to_connect = Instant::now();
    let fibers: Vec<_> = (0..run.plan.connections).map(|number| run.spawn(runtime, number)).collect();
    run.await_connections();
    let connecting = began_to_connect.elapsed();
    let connected = run.connected.load(Relaxed);
    if connected > 0 {
        let _ = run.begun.set(Instant::now());
        run.announce("begun");
    }
    run.begin.set();
    if connected > 0 {
        run.watch();
        run.announce("over");
    }
    run.end(&fibers);
    fibers.into_iter().for_each(|fiber| drop(fiber.join()));
    let mut outcome = run.collect();
    outcome.connecting = connecting;
    match outcome.errors.keys().next() {
        Some(error) if connected == 0 => Err(Failure::new(format!("no connection to {}: {error}", run.addrs()))),
        _ => Ok(outcome),
    }
}

/// One run, shared by its fibers and the main thread.
struct Run {
    plan: Plan,
    /// To open a connection takes a permit.
    opening: Semaphore,
    /// Connections that have not been tried yet.
    tried: Latch,
    /// That of all connections, if there is one. Whoever is the first to connect looks for it, and the others wait for him.
    addr: OnceLock<Option<SocketAddr>>,
    connected: AtomicUsize,
    begin: Event,
    /// When it began. Not set at `begin`: there is nothing to be done.
    begun: OnceLock<Instant>,
    /// When it was cut short. Those who wait for answers or for their moment are cancelled then.
    cut: OnceLock<Instant>,
    shards: Box<[Shard]>,
}

/// What the fibers of one worker have to say.
#[repr(align(128))]
struct Shard {
    /// For the line that is drawn meanwhile.
    answers: AtomicU64,
    faults: AtomicU64,
    record: Mutex<Record>,
}

struct Record {
    latencies_ns: Histogram<u64>,
    sent_late_ns: Histogram<u64>,
    in_time: u64,
    unsent: u64,
    in_flight: u64,
    errors: BTreeMap<String, u64>,
}

impl Shard {
    fn new() -> Self {
        let latencies_ns: Histogram<u64> =
            Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS).expect("bounds and number of digits are valid ones");
        let sent_late_ns = Histogram::new_from(&latencies_ns);
        let record = Record { latencies_ns, sent_late_ns, in_time: 0, unsent: 0, in_flight: 0, errors: BTreeMap::new() };
        Self { answers: AtomicU64::new(0), faults: AtomicU64::new(0), record: Mutex::new(record) }
    }

    fn record(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Run {
    fn new(plan: Plan, workers: usize) -> Self {
        Self {
            opening: Semaphore::new(OPENING_MAX),
            tried: Latch::new(plan.connections),
            addr: OnceLock::new(),
            connected: AtomicUsize::new(0),
            begin: Event::new(),
            begun: OnceLock::new(),
            cut: OnceLock::new(),
            shards: (0..workers).map(|_| Shard::new()).collect(),
            plan,
        }
    }

    fn spawn(self: &Arc<Self>, runtime: &Runtime, number: usize) -> JoinHandle<()> {
        let run = self.clone();
        runtime.spawn(move || run.live(number))
    }

    /// The life of a fiber: it connects, waits for the beginning, and sends one request after the other.
    fn live(&self, number: usize) {
        let mut client = self.open(number);
        self.tried.count_down();
        self.begin.wait();
        let Some(&begun) = self.begun.get() else { return };
        let mut schedule = Schedule { plan: &self.plan, number, begun, sent: 0 };
        let end = begun + self.plan.duration;
        while let Some(due) = schedule.next(end) {
            let waits = Instant::now() < due;
            sinew::sleep_until(due);
            if sinew::cancelled() {
                schedule.sent -= 1;
                break;
            }
            if waits {
                let late = due.elapsed().as_nanos() as u64;
                self.shard().record().sent_late_ns.saturating_record(late.max(1));
            }
            self.request(number, &mut client, due, end);
        }
        self.shard().record().unsent += schedule.unsent(self.cut.get().copied().unwrap_or(end));
    }

    /// The first try to connect.
    fn open(&self, number: usize) -> Option<Client> {
        let _permit = self.opening.acquire();
        match self.connect(number) {
            Ok(client) => {
                self.connected.fetch_add(1, Relaxed);
                Some(client)
            }
            Err(fault) => {
                self.note_fault(fault.to_string());
                None
            }
        }
    }

    /// The first of all tries all addresses. If none has answered him, each does so for himself: the server may come yet, at any of them.
    fn connect(&self, number: usize) -> Result<Client, Fault> {
        let mut first = None;
        let addr = self.addr.get_or_init(|| {
            let (addr, done) = self.try_all(number);
            first = Some(done);
            addr
        });
        match (first, addr) {
            (Some(done), _) => done,
            (None, Some(addr)) => self.connect_to(addr, number),
            (None, None) => self.try_all(number).1,
        }
    }

    /// Tries one address after the other. Gives the one that answered, and what came of the last try.
    fn try_all(&self, number: usize) -> (Option<SocketAddr>, Result<Client, Fault>) {
        let mut last = None;
        let found = self.plan.addrs.iter().find(|addr| last.insert(self.connect_to(addr, number)).is_ok());
        (found.copied(), last.expect("a server has an address"))
    }

    fn connect_to(&self, addr: &SocketAddr, number: usize) -> Result<Client, Fault> {
        Client::connect(addr, &self.plan.talk, number)
    }

    /// One request, with a new connection if there is none.
    fn request(&self, number: usize, client: &mut Option<Client>, due: Instant, end: Instant) {
        let connected = match client.take() {
            Some(client) => Ok(client),
            None => self.connect(number),
        };
        match connected.and_then(|mut connected| connected.exchange().map(|then| (connected, then))) {
            Ok((connected, then)) => {
                self.note_answer(due, end);
                *client = (then == Then::GoOn).then_some(connected);
            }
            Err(_) if sinew::cancelled() && self.cut.get().is_some() => self.shard().record().in_flight += 1,
            Err(_) if sinew::cancelled() => self.note_fault(UNANSWERED.to_owned()),
            Err(fault) => {
                self.note_fault(fault.to_string());
                sinew::sleep(FAULT_PAUSE);
            }
        }
    }

    fn note_answer(&self, due: Instant, end: Instant) {
        let (now, shard) = (Instant::now(), self.shard());
        let latency_ns = now.saturating_duration_since(due).as_nanos() as u64;
        shard.answers.fetch_add(1, Relaxed);
        let mut record = shard.record();
        record.latencies_ns.saturating_record(latency_ns.max(1));
        record.in_time += u64::from(now <= end);
    }

    fn note_fault(&self, name: String) {
        let shard = self.shard();
        shard.faults.fetch_add(1, Relaxed);
        *shard.record().errors.entry(name).or_default() += 1;
    }

    /// That of this thread.
    fn shard(&self) -> &Shard {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local!(static INDEX: Cell<usize> = Cell::new(NEXT.fetch_add(1, Relaxed)));
        &self.shards[INDEX.get() % self.shards.len()]
    }

    /// Waits until every connection was tried.
    fn await_connections(&self) {
        let all = self.plan.connections as u64;
        let line = Line::new("connect", all);
        while !self.tried.wait_timeout(DRAW_PERIOD) {
            let tried = all - self.tried.count() as u64;
            let so_far = format!("{} / {} connections", HumanCount(tried), HumanCount(all));
            if self.plan.stop.is_set() {
                line.clear();
                interrupt::end(format_args!("before the first request: {so_far}"));
            }
            line.show(tried, so_far);
        }
        line.clear();
    }

    /// Waits until the time is over, or cut short.
    fn watch(&self) {
        let begun = *self.begun.get().expect("it has begun");
        let (duration, mut last) = (self.plan.duration, (begun, 0));
        let line = Line::new("load", duration.as_millis() as u64);
        while let Some(left) = duration.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
            if self.plan.stop.wait_timeout(left.min(DRAW_PERIOD)) {
                let _ = self.cut.set(Instant::now());
                break;
            }
            let (now, answers) = (Instant::now(), self.sum(|shard| &shard.answers));
            let per_second = (answers - last.1) as f64 / (now - last.0).as_secs_f64();
            let (per_second, faults) = (HumanCount(per_second as u64), HumanCount(self.sum(|shard| &shard.faults)));
            let elapsed = begun.elapsed();
            line.show(
                elapsed.as_millis() as u64,
                format!("{:.1} / {:.1} s, {per_second} requests/s, {faults} errors", elapsed.as_secs_f64(), duration.as_secs_f64()),
            );
            last = (now, answers);
        }
        line.clear();
    }

    /// Waits until all have ended, unless it was cut short, and cancels those that have not.
    fn end(&self, fibers: &[JoinHandle<()>]) {
        let begun = Instant::now();
        while begun.elapsed() < GRACE && !fibers.iter().all(JoinHandle::is_finished) && !self.plan.stop.wait_timeout(END_PERIOD) {}
        fibers.iter().filter(|fiber| !fiber.is_finished()).for_each(JoinHandle::cancel);
    }

    fn sum(&self, counter: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        self.shards.iter().map(|shard| counter(shard).load(Relaxed)).sum()
    }

    /// All of them, for a message.
    fn addrs(&self) -> String {
        self.plan.addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(" or ")
    }

    fn announce(&self, what: &str) {
        if self.plan.announces {
            // A parent that is gone does not want it.
            let _ = writeln!(io::stdout(), "{what}");
        }
    }

    fn collect(&self) -> Outcome {
        let empty = Histogram::new_from(&self.shards[0].record().latencies_ns);
        let took = self.cut.get().zip(self.begun.get()).map_or(self.plan.duration, |(&cut, &begun)| cut - begun);
        let mut outcome = Outcome {
            latencies_ns: empty.clone(),
            sent_late_ns: empty,
            in_time: 0,
            unsent: 0,
            errors: BTreeMap::new(),
            connecting: Duration::ZERO,
            took,
            cut_short: self.plan.stop.is_set(),
            in_flight: 0,
        };
        for shard in &self.shards {
            let record = shard.record();
            outcome.latencies_ns.add(&record.latencies_ns).expect("all histograms have the same bounds");
            outcome.sent_late_ns.add(&record.sent_late_ns).expect("all histograms have the same bounds");
            outcome.in_time += record.in_time;
            outcome.unsent += record.unsent;
            outcome.in_flight += record.in_flight;
            for (name, count) in &record.errors {
                *outcome.errors.entry(name.clone()).or_default() += count;
            }
        }
        outcome
    }
}

/// When the requests of one connection are due.
struct Schedule<'a> {
    plan: &'a Plan,
    number: usize,
    begun: Instant,
    sent: u64,
}

impl Schedule<'_> {
    /// The moment of the next request; none if that, or now, is at the end or later.
    fn next(&mut self, end: Instant) -> Option<Instant> {
        let now = Instant::now();
        let due = self.due(self.sent).unwrap_or(now);
        if now.max(due) >= end {
            return None;
        }
        self.sent += 1;
        Some(due)
    }

    /// When a request is due; none in a closed loop. Connections take turns.
    fn due(&self, request: u64) -> Option<Instant> {
        let place = self.number as u128 + u128::from(request) * self.plan.connections as u128;
        let after_ns = place * NS_PER_SECOND / self.plan.rate? as u128;
        Some(self.begun + Duration::from_nanos(u64::try_from(after_ns).unwrap_or(u64::MAX)))
    }

    /// Requests that were due before the end and are not sent. Not counted one by one: of a rate that no server keeps up with they are millions.
    fn unsent(&self, end: Instant) -> u64 {
        let Some(rate) = self.plan.rate else { return 0 };
        let duration_ns = end.saturating_duration_since(self.begun).as_nanos();
        // Those of all connections, then this one's: each place is due before the end if the exact moment is, since the end is a whole number of nanoseconds.
        let places = duration_ns.saturating_mul(rate as u128).div_ceil(NS_PER_SECOND);
        let own = places.saturating_sub(self.number as u128).div_ceil(self.plan.connections as u128);
        u64::try_from(own).unwrap_or(u64::MAX).saturating_sub(self.sent)
    }
}

/// How far it is: a line on a terminal, nothing elsewhere.
struct Line(ProgressBar);

impl Line {
    fn new(name: &'static str, length: u64) -> Self {
        let bar = ProgressBar::new(length).with_prefix(name);
        bar.set_style(ProgressStyle::with_template(BAR).expect("the template is a valid one").progress_chars("=> "));
        Self(bar)
    }

    fn show(&self, position: u64, message: String) {
        self.0.set_position(position);
        self.0.set_message(message);
    }

    fn clear(&self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn plan(rate: Option<usize>, connections: usize) -> Plan {
        Plan {
            addrs: vec!["127.0.0.1:1".parse().unwrap()],
            talk: Talk::Echo { bytes: 1 },
            connections,
            duration: Duration::from_secs(1),
            rate,
            announces: false,
            stop: Arc::default(),
        }
    }

    /// Ten connections at 100 a second: each is due every 100 ms, one after the other.
    #[test]
    fn requests_are_due_in_turn_whatever_the_server_does() {
        let (plan, begun) = (plan(Some(100), 10), Instant::now());
        let due = |number, request| Schedule { plan: &plan, number, begun, sent: 0 }.due(request).unwrap() - begun;
        assert_eq!(due(0, 0), Duration::ZERO);
        assert_eq!(due(3, 0), Duration::from_millis(30));
        assert_eq!(due(3, 2), Duration::from_millis(230));
    }

    #[test]
    fn what_was_due_and_not_sent_is_counted() {
        let (plan, begun) = (plan(Some(100), 10), Instant::now());
        let schedule = Schedule { plan: &plan, number: 9, begun, sent: 4 };
        assert_eq!(schedule.unsent(begun + Duration::from_secs(1)), 6);
        assert_eq!(schedule.unsent(begun), 0);
    }

    /// As one by one, also where moments fall between two nanoseconds, and at once where one by one would take years.
    #[test]
    fn what_is_not_sent_is_counted_without_counting() {
        let begun = Instant::now();
        for (rate, connections) in [(1, 1), (3, 2), (7, 3), (100, 10), (999, 7), (1_000_003, 64)] {
            let plan = plan(Some(rate), connections);
            for number in [0, connections / 2, connections - 1] {
                for end_ns in [0, 1, 999_999, 142_857_143, 1_000_000_000 / rate as u64, 300_000_000] {
                    for sent in [0, 1, 5] {
                        let schedule = Schedule { plan: &plan, number, begun, sent };
                        let end = begun + Duration::from_nanos(end_ns);
                        let one_by_one = (sent..).take_while(|&request| schedule.due(request).unwrap() < end).count() as u64;
                        assert_eq!(schedule.unsent(end), one_by_one, "{rate} by {connections}, of {number}, {sent} sent, in {end_ns} ns");
                    }
                }
            }
        }
        let plan = plan(Some(10_usize.pow(18)), 2);
        assert_eq!(Schedule { plan: &plan, number: 1, begun, sent: 7 }.unsent(begun + Duration::from_secs(1)), 10_u64.pow(18) / 2 - 7);
    }

    #[test]
    fn a_closed_loop_has_no_schedule() {
        let (plan, begun) = (plan(None, 10), Instant::now());
        let mut schedule = Schedule { plan: &plan, number: 9, begun, sent: 0 };
        assert!(schedule.next(begun + Duration::from_secs(3600)).is_some_and(|due| due >= begun));
        assert_eq!(schedule.unsent(begun + Duration::from_secs(1)), 0);
        assert_eq!(schedule.next(begun), None);
    }

    /// Where nobody listens: the port is the listener's, at another address.
    fn deserted(listener: &TcpListener, host: u8) -> SocketAddr {
        (Ipv4Addr::new(127, 0, 0, host), listener.local_addr().unwrap().port()).into()
    }

    #[test]
    fn all_connections_go_to_the_first_address_that_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let run = Arc::new(Run::new(Plan { addrs: vec![deserted(&listener, 2), addr], ..plan(None, 10) }, 2));
        let runtime = Runtime::builder().workers(2).build().unwrap();
        let fibers: Vec<_> =
            (0..10).map(|number| (run.clone(), number)).map(|(run, number)| runtime.spawn(move || run.open(number))).collect();
        assert!(fibers.into_iter().all(|fiber| fiber.join().unwrap().is_some()));
        assert_eq!((run.connected.load(Relaxed), run.addr.get()), (10, Some(&Some(addr))));
        // The address that did not answer is no fault.
        assert_eq!(run.collect().errors, BTreeMap::new());
    }

    /// Claim: where no address answered whoever connected first, a server that comes to one of them is found, whichever it is.
    #[test]
    fn a_server_that_comes_late_is_found_at_any_address() {
        let runtime = Runtime::builder().workers(1).build().unwrap();
        for at in 0..3 {
            // So nobody else has the port.
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let addrs = [2, 3, 4].map(|host| deserted(&listener, host));
            let run = Arc::new(Run::new(Plan { addrs: addrs.to_vec(), ..plan(None, 3) }, 1));
            let open = |number| {
                let run = run.clone();
                runtime.spawn(move || run.open(number).is_some()).join().unwrap()
            };
            assert!(!open(0), "nobody listens");
            let _server = TcpListener::bind(addrs[at]).unwrap();
            assert!(open(1) && open(2), "{addrs:?}, of which {at} answers");
        }
    }

    #[test]
    fn if_no_address_answers_all_are_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addrs = [2, 3].map(|host| deserted(&listener, host));
        let runtime = Runtime::builder().workers(1).build().unwrap();
        let failure = drive(&runtime, Plan { addrs: addrs.to_vec(), ..plan(None, 3) }).err().expect("nobody listens");
        let said = format!("no connection to {} or {}: Connection refused", addrs[0], addrs[1]);
        assert!(format!("{failure:?}").contains(&said), "{failure:?}");
    }
}
