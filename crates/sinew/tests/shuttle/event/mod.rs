#[path = "../../../src/event/readiness.rs"]
pub mod readiness;
#[path = "../../../src/event/roam.rs"]
pub mod roam;
#[path = "../../../src/event/timers.rs"]
pub mod timers;

/// The instance of a group, whose kernel is another shuttle thread, too. One group at a time has one.
pub mod epoll {
    use std::cell::{Cell, RefCell};
    use std::io;
    use std::os::fd::RawFd;

    use crate::base::atomic::{Relaxed, mutant};
    use crate::base::list::List;
    use crate::fiber::Control;
    use crate::fiber::state::Cause;
    use crate::os::bell::Bell;
    use crate::os::lock::Lock;
    use crate::os::{clock, futex};

    /// What a fiber waits for here. No atomic of shuttle's: the kernel does its part without a switch to another thread.
    pub struct Question {
        pub answered: Cell<bool>,
    }

    // shuttle's threads are one thread of the system.
    std::thread_local! {
        static ASKED: RefCell<Vec<(*const Question, *const Control)>> = RefCell::default();
        /// Bells of sources that watch the instance, each until it is rung once.
        static WATCHING: RefCell<Vec<*const Bell>> = RefCell::default();
        /// What the alarm is set to; `u64::MAX` if it is not, or has been told of.
        static ALARM_NS: Cell<u64> = const { Cell::new(u64::MAX) };
    }

    /// Under which waits are ended and withdrawn, as under a descriptor's.
    pub static WAITING: Lock<()> = Lock::new(());

    pub struct Alarm;

    impl Alarm {
        pub fn new(_epoll: RawFd) -> io::Result<Self> {
            ALARM_NS.set(u64::MAX);
            Ok(Self)
        }

        /// Who sleeps at a source that watches is rung, and sleeps again: until then, where nothing else comes.
        pub fn set(&self, at_ns: u64) {
            if !mutant("no alarm") {
                ALARM_NS.set(at_ns);
                ring_all();
            }
        }
    }

    /// For threads that wait; no scenario has any.
    pub struct Edges;

    impl Edges {
        pub fn of(_fd: RawFd, _bits: libc::c_short) -> io::Result<Self> {
            unimplemented!("a thread waits at a descriptor")
        }

        pub fn fd(&self) -> RawFd {
            -1
        }

        pub fn take(&self) -> io::Result<libc::c_short> {
            Ok(0)
        }
    }

    pub fn alarm_ns() -> u64 {
        ALARM_NS.get()
    }

    pub fn open() {
        ASKED.take();
        WATCHING.take();
    }

    pub fn ask(question: &Question, control: &Control) {
        ASKED.with_borrow_mut(|asked| asked.push((question, control)));
    }

    pub fn watch(bell: *const Bell) {
        WATCHING.with_borrow_mut(|watching| watching.push(bell));
    }

    pub fn has_found() -> bool {
        // SAFETY: who asks waits until it is answered.
        ASKED.with_borrow(|asked| asked.iter().any(|(question, _)| unsafe { (**question).answered.get() }))
    }

    pub fn answer(question: &Question) {
        question.answered.set(true);
        if !mutant("no lookout") {
            ring_all();
        }
    }

    /// It is not there to be answered any more.
    pub fn withdraw(question: &Question) {
        ASKED.with_borrow_mut(|asked| asked.retain(|(other, _)| !std::ptr::eq(*other, question)));
    }

    fn ring_all() {
        for bell in WATCHING.take() {
            // SAFETY: bells are never freed.
            unsafe {
                (*bell).word().fetch_add(1, Relaxed);
                futex::wake_one((*bell).word());
            }
        }
    }

    pub fn look_once<const MOST: usize>(_epoll: RawFd, _instance: u64, woken: &List<Control>) -> bool {
        let rang = clock::now_ns() >= ALARM_NS.get();
        if rang {
            ALARM_NS.set(u64::MAX);
        }
        let _waiting = WAITING.lock();
        // SAFETY: as above.
        let (found, left): (Vec<_>, Vec<_>) = ASKED.take().into_iter().partition(|(question, _)| unsafe { (**question).answered.get() });
        ASKED.set(left);
        for (_, control) in found {
            // SAFETY: it waits for its answer.
            unsafe {
                if let Some(claimed) = (*control).claim(Cause::Woken) {
                    woken.push(claimed.control.cast_mut());
                }
            }
        }
        rang
    }
}

pub mod instance {
    use std::io;
    use std::os::fd::RawFd;

    /// There is one at a time.
    pub struct Instance;

    impl Instance {
        pub fn open() -> io::Result<Self> {
            super::epoll::open();
            Ok(Self)
        }

        pub fn fd(&self) -> RawFd {
            -1
        }

        pub fn number(&self) -> u64 {
            0
        }
    }

    /// Nothing waits at a real instance here.
    pub fn forget(_number: u64, _fd: RawFd) {}
}

/// Listeners, and polls for them, as the kernel has them. It does its part without a switch to another thread: what it does is one step.
pub mod kernel {
    use std::cell::{Cell, RefCell};
    use std::collections::HashMap;
    use std::os::fd::RawFd;

    use super::uring::Completion;
    use crate::base::atomic::{Relaxed, mutant};
    use crate::os::bell::Bell;
    use crate::os::futex;

    #[derive(Default)]
    struct Listener {
        connections: usize,
        is_shut: bool,
    }

    /// One that was put into the ring of the worker with this bell.
    struct Poll {
        ring: *const Bell,
        fd: RawFd,
        completion: *const Completion,
        stage: Stage,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Stage {
        /// The kernel does not know of it.
        Unsent,
        Armed,
        /// Done, and to be read.
        Told(i32),
    }

    // shuttle's threads are one thread of the system.
    std::thread_local! {
        static LISTENERS: RefCell<HashMap<RawFd, Listener>> = RefCell::default();
        static POLLS: RefCell<Vec<Poll>> = RefCell::default();
        /// Tries to accept that are to find no descriptor.
        static SHORT_OF: Cell<usize> = const { Cell::new(0) };
        static FOUND_NONE: Cell<usize> = const { Cell::new(0) };
    }

    /// A new machine, with nothing on it.
    pub fn begin() {
        LISTENERS.take();
        POLLS.take();
        SHORT_OF.set(0);
        FOUND_NONE.set(0);
    }

    pub fn listen(fd: RawFd) {
        LISTENERS.with_borrow_mut(|all| all.insert(fd, Listener::default()));
    }

    /// The next so many tries to accept fail for want of a descriptor, whether there is a connection or not.
    pub fn run_short(tries: usize) {
        SHORT_OF.set(tries);
    }

    pub fn is_short() -> bool {
        SHORT_OF.get() != 0
    }

    /// A connection comes: all polls for it are done, or, with the mutant, one, as with those of `ACCEPT`.
    pub fn connect(fd: RawFd) {
        with_listener(fd, |listener| listener.connections += 1);
        tell(fd, if mutant("exclusive polls") { 1 } else { usize::MAX });
    }

    /// Nothing comes any more.
    pub fn shut(fd: RawFd) {
        with_listener(fd, |listener| listener.is_shut = true);
        tell(fd, usize::MAX);
    }

    /// As `accept4`, which looks for a descriptor first.
    pub fn accept(fd: RawFd) -> Result<(), i32> {
        if SHORT_OF.get() != 0 {
            SHORT_OF.set(SHORT_OF.get() - 1);
            return Err(libc::EMFILE);
        }
        with_listener(fd, |listener| match listener.connections {
            _ if listener.is_shut => Err(libc::EINVAL),
            0 => {
                FOUND_NONE.set(FOUND_NONE.get() + 1);
                Err(libc::EAGAIN)
            }
            _ => {
                listener.connections -= 1;
                Ok(())
            }
        })
    }

    pub fn connections(fd: RawFd) -> usize {
        with_listener(fd, |listener| listener.connections)
    }

    /// Tries to accept that found no connection.
    pub fn found_none() -> usize {
        FOUND_NONE.get()
    }

    /// Polls that the kernel knows of and has not answered.
    pub fn armed() -> usize {
        POLLS.with_borrow(|polls| polls.iter().filter(|poll| poll.stage == Stage::Armed).count())
    }

    /// Claim: of one listener a ring is asked by one fiber at a time.
    pub fn put_poll(ring: *const Bell, fd: RawFd, completion: *const Completion) {
        POLLS.with_borrow_mut(|polls| {
            assert!(!polls.iter().any(|poll| poll.ring == ring && poll.fd == fd), "two fibers ask one ring for one listener");
            polls.push(Poll { ring, fd, completion, stage: Stage::Unsent });
        });
    }

    /// What was put into this ring is the kernel's from now on: it tells of what is there already.
    pub fn send(ring: *const Bell, cancels: Vec<*const Completion>) {
        POLLS.with_borrow_mut(|polls| {
            for poll in polls.iter_mut().filter(|poll| poll.ring == ring && poll.stage == Stage::Unsent) {
                let told = if mutant("blind polls") { 0 } else { with_listener(poll.fd, |listener| told(listener)) };
                poll.stage = if told == 0 { Stage::Armed } else { Stage::Told(told) };
            }
            for poll in polls.iter_mut().filter(|poll| poll.stage == Stage::Armed && cancels.contains(&poll.completion)) {
                poll.stage = Stage::Told(-libc::ECANCELED);
            }
        });
    }

    pub fn has_answers(ring: *const Bell) -> bool {
        POLLS.with_borrow(|polls| polls.iter().any(|poll| poll.ring == ring && matches!(poll.stage, Stage::Told(_))))
    }

    /// Takes the answers out of a ring.
    pub fn answers(ring: *const Bell) -> Vec<(*const Completion, i32)> {
        let mut answers = Vec::new();
        POLLS.with_borrow_mut(|polls| {
            polls.retain(|poll| match poll.stage {
                Stage::Told(told) if poll.ring == ring => {
                    answers.push((poll.completion, told));
                    false
                }
                _ => true,
            });
        });
        answers
    }

    fn with_listener<T>(fd: RawFd, f: impl FnOnce(&mut Listener) -> T) -> T {
        LISTENERS.with_borrow_mut(|all| f(all.get_mut(&fd).expect("it listens")))
    }

    fn told(listener: &Listener) -> i32 {
        let come = if listener.connections != 0 { libc::POLLIN } else { 0 };
        let end = if listener.is_shut { libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP } else { 0 };
        i32::from(come | end)
    }

    /// Answers polls for a listener, by what is the case now: it may be over when the answer is read. Who sleeps at such a ring wakes.
    fn tell(fd: RawFd, most: usize) {
        let told = with_listener(fd, |listener| told(listener));
        let mut rings = Vec::new();
        POLLS.with_borrow_mut(|polls| {
            for poll in polls.iter_mut().filter(|poll| poll.fd == fd && poll.stage == Stage::Armed).take(most) {
                poll.stage = Stage::Told(told);
                rings.push(poll.ring);
            }
        });
        for ring in rings {
            // SAFETY: bells are never freed.
            unsafe {
                (*ring).word().fetch_add(1, Relaxed);
                futex::wake_one((*ring).word());
            }
        }
    }
}

/// A ring in whose kernel (`kernel`) there are listeners, and nothing else.
pub mod uring {
    use std::cell::Cell;
    use std::io;
    use std::os::fd::RawFd;

    use io_uring::squeue::Entry;

    use super::kernel;
    use crate::base::list::List;
    use crate::fiber::Control;
    use crate::fiber::state::Cause;
    use crate::os::bell::Bell;

    /// As in `src`.
    pub struct Completion {
        control: *const Control,
        result: Cell<Option<i32>>,
    }

    impl Completion {
        pub fn new(control: &Control) -> Self {
            Self { control, result: Cell::new(None) }
        }

        /// # Safety
        /// As in `src`.
        pub unsafe fn new_in_block(control: &Control) -> &Self {
            // SAFETY: the caller's promise.
            unsafe {
                let place = control.beside_deadline::<Self>();
                place.write(Self::new(control));
                &*place
            }
        }

        pub fn result(&self) -> Option<io::Result<usize>> {
            self.result.get().map(|result| usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)))
        }
    }

    pub struct Uring {
        pub(super) bell: *const Bell,
        unsent: usize,
        cancels: Vec<*const Completion>,
    }

    impl Uring {
        pub(super) fn open(bell: &Bell) -> Self {
            Self { bell, unsent: 0, cancels: Vec::new() }
        }

        /// # Safety
        /// As in `src`; and it is a poll for a listener.
        pub unsafe fn submit(&mut self, entry: &mut Entry, completion: &Completion) {
            // SAFETY: it is as the kernel has it: operation, flags and priority, then the descriptor.
            let fd = unsafe { std::ptr::from_ref(entry).cast::<RawFd>().add(1).read() };
            kernel::put_poll(self.bell, fd, completion);
            self.unsent += 1;
        }

        pub fn cancel(&mut self, completion: &Completion) {
            self.cancels.push(completion);
            self.unsent += 1;
        }

        pub(super) fn unsent(&self) -> usize {
            self.unsent
        }

        pub(super) fn has_found(&self) -> bool {
            kernel::has_answers(self.bell)
        }

        pub(super) fn send(&mut self) {
            kernel::send(self.bell, std::mem::take(&mut self.cancels));
            self.unsent = 0;
        }

        pub(super) fn look(&mut self, woken: &List<Control>) {
            self.send();
            for (completion, told) in kernel::answers(self.bell) {
                // SAFETY: who asks waits until it is answered.
                unsafe {
                    (*completion).result.set(Some(told));
                    if let Some(claimed) = (*(*completion).control).claim(Cause::Woken) {
                        woken.push(claimed.control.cast_mut());
                    }
                }
            }
        }
    }
}

/// A source whose kernel is another shuttle thread: it [answers](answer) what fibers wait for, and rings the bell of who sleeps.
pub mod source {
    use std::cell::RefCell;
    use std::io;
    use std::os::fd::RawFd;

    use super::epoll;
    use super::uring::Uring;
    use crate::base::atomic::{AtomicU32, Relaxed};
    use crate::base::list::List;
    use crate::fiber::Control;
    use crate::fiber::state::Cause;
    use crate::os::bell::Bell;
    use crate::os::{clock, futex};

    pub const SOURCE_TURNS: u32 = 16;
    pub const SOURCE_GAP_NS: u64 = 100_000;

    #[derive(Clone, Copy)]
    pub enum Io {
        Auto,
        Uring,
        Epoll,
    }

    pub fn is_shortage(error: &io::Error) -> bool {
        error.raw_os_error() == Some(libc::EMFILE)
    }

    /// What a fiber waits for here; another thread answers it.
    pub struct Question {
        pub answered: AtomicU32,
        pub bell: *const Bell,
    }

    /// Answers a question as the kernel does: the answer is there to be read, and whoever sleeps at the source wakes.
    pub fn answer(question: &Question) {
        let bell = question.bell;
        question.answered.store(1, Relaxed);
        // SAFETY: bells are never freed.
        unsafe {
            (*bell).word().fetch_add(1, Relaxed);
            futex::wake_one((*bell).word());
        }
    }

    /// The driver that is asked for, or, for questions, the second.
    pub enum Source {
        Uring(Sleeper<Uring>),
        Epoll(Sleeper<Questions>),
    }

    /// A driver, and how its worker sleeps there.
    pub struct Sleeper<D> {
        driver: D,
        bell: *const Bell,
        /// Rings seen.
        heard: u32,
        watches_roam: bool,
    }

    impl<D> std::ops::Deref for Sleeper<D> {
        type Target = D;
        fn deref(&self) -> &D {
            &self.driver
        }
    }

    impl<D> std::ops::DerefMut for Sleeper<D> {
        fn deref_mut(&mut self) -> &mut D {
            &mut self.driver
        }
    }

    /// What fibers have asked and wait for.
    #[derive(Default)]
    pub struct Questions(RefCell<Vec<(*const Question, *const Control)>>);

    impl Questions {
        pub fn fd(&self) -> RawFd {
            unimplemented!("a fiber waits for a descriptor at epoll")
        }

        pub fn instance(&self) -> u64 {
            unimplemented!("a fiber waits for a descriptor at epoll")
        }

        fn has_found(&self) -> bool {
            // SAFETY: who asks waits until it is answered.
            self.0.borrow().iter().any(|(question, _)| unsafe { (**question).answered.load(Relaxed) } != 0)
        }

        fn look(&self, woken: &List<Control>) {
            self.0.borrow_mut().retain(|&(question, control)| {
                // SAFETY: as above.
                unsafe {
                    let answered = (*question).answered.load(Relaxed) != 0;
                    if answered && let Some(claimed) = (*control).claim(Cause::Woken) {
                        woken.push(claimed.control.cast_mut());
                    }
                    !answered
                }
            });
        }
    }

    impl<D> Sleeper<D> {
        fn new(driver: D, bell: &Bell) -> Self {
            Self { driver, bell, heard: bell.word().load(Relaxed), watches_roam: false }
        }

        fn watch_roam(&mut self) {
            if !self.watches_roam {
                self.watches_roam = true;
                epoll::watch(self.bell);
            }
        }

        /// As epoll's: a ring since the last sleep ends this one at once.
        fn sleep(&mut self, has_found: bool, deadline_ns: u64) {
            // SAFETY: bells are never freed.
            let word = unsafe { (*self.bell).word() };
            let has_found = has_found || (self.watches_roam && epoll::has_found());
            if !has_found && word.load(Relaxed) == self.heard {
                let deadline_ns = if self.watches_roam { deadline_ns.min(epoll::alarm_ns()) } else { deadline_ns };
                // A sleep until idle stacks are to be trimmed, a second away, would hide a wake that is lost.
                let is_far = deadline_ns.saturating_sub(clock::now_ns()) > 500_000_000;
                futex::wait(word, self.heard, if is_far { u64::MAX } else { deadline_ns });
            }
            self.heard = word.load(Relaxed);
            // If it was not rung, it is so once more than it should.
            self.watches_roam = false;
        }
    }

    impl Source {
        pub fn open(io: Io, bell: &Bell) -> io::Result<Self> {
            Ok(match io {
                Io::Uring => Source::Uring(Sleeper::new(Uring::open(bell), bell)),
                Io::Auto | Io::Epoll => Source::Epoll(Sleeper::new(Questions::default(), bell)),
            })
        }

        pub fn ask(&mut self, question: &mut Question, control: &Control) {
            let Source::Epoll(asked) = self else { panic!("a ring is asked by operations") };
            question.bell = asked.bell;
            asked.0.borrow_mut().push((question, control));
        }

        pub fn watch_roam(&mut self, _roam: RawFd) -> io::Result<()> {
            match self {
                Source::Uring(ring) => ring.watch_roam(),
                Source::Epoll(asked) => asked.watch_roam(),
            }
            Ok(())
        }

        pub fn io(&self) -> Io {
            match self {
                Source::Uring(_) => Io::Uring,
                Source::Epoll(_) => Io::Auto,
            }
        }

        pub fn is_ring(&self) -> bool {
            matches!(self, Source::Uring(_))
        }

        pub fn unsent(&self) -> usize {
            match self {
                Source::Uring(ring) => ring.unsent(),
                Source::Epoll(_) => 0,
            }
        }

        pub fn has_found(&self) -> bool {
            match self {
                Source::Uring(ring) => ring.has_found(),
                Source::Epoll(asked) => asked.has_found(),
            }
        }

        /// Never: what a question has come to is seen by a look.
        pub fn is_due(&self) -> bool {
            false
        }

        pub fn look(&mut self, _turns: u32, _has_backlog: bool, _ready: usize, woken: &List<Control>) -> bool {
            match self {
                Source::Uring(ring) => ring.look(woken),
                Source::Epoll(asked) => asked.look(woken),
            }
            true
        }

        pub fn sleep(&mut self, deadline_ns: u64) {
            match self {
                Source::Uring(ring) => {
                    ring.send();
                    ring.sleep(ring.has_found(), deadline_ns);
                }
                Source::Epoll(asked) => asked.sleep(asked.has_found(), deadline_ns),
            }
        }
    }
}
