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
}

/// A source whose kernel is another shuttle thread: it [answers](answer) what fibers wait for, and rings the bell of who sleeps.
pub mod source {
    use std::cell::RefCell;
    use std::io;
    use std::os::fd::RawFd;

    use super::epoll;
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

    pub struct Source {
        bell: *const Bell,
        /// Rings seen.
        heard: u32,
        asked: RefCell<Vec<(*const Question, *const Control)>>,
        watches_roam: bool,
    }

    impl Source {
        pub fn open(_io: Io, bell: &Bell) -> io::Result<Self> {
            Ok(Self { bell, heard: bell.word().load(Relaxed), asked: RefCell::default(), watches_roam: false })
        }

        pub fn ask(&mut self, question: &mut Question, control: &Control) {
            question.bell = self.bell;
            self.asked.borrow_mut().push((question, control));
        }

        pub fn watch_roam(&mut self, _roam: RawFd) -> io::Result<()> {
            if !self.watches_roam {
                self.watches_roam = true;
                epoll::watch(self.bell);
            }
            Ok(())
        }

        pub fn io(&self) -> Io {
            Io::Auto
        }

        pub fn is_ring(&self) -> bool {
            false
        }

        pub fn unsent(&self) -> usize {
            0
        }

        pub fn has_found(&self) -> bool {
            // SAFETY: who asks waits until it is answered.
            self.asked.borrow().iter().any(|(question, _)| unsafe { (**question).answered.load(Relaxed) } != 0)
        }

        pub fn look(&mut self, _turns: u32, _has_backlog: bool, woken: &List<Control>) -> bool {
            self.asked.borrow_mut().retain(|&(question, control)| {
                // SAFETY: as above.
                unsafe {
                    let answered = (*question).answered.load(Relaxed) != 0;
                    if answered && let Some(claimed) = (*control).claim(Cause::Woken) {
                        woken.push(claimed.control.cast_mut());
                    }
                    !answered
                }
            });
            true
        }

        /// As epoll's: a ring since the last sleep ends this one at once.
        pub fn sleep(&mut self, deadline_ns: u64) {
            // SAFETY: bells are never freed.
            let word = unsafe { (*self.bell).word() };
            let has_found = self.has_found() || (self.watches_roam && epoll::has_found());
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
}
