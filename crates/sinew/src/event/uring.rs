//! The ring: operations handed to the kernel, which says when each is done.
//!
//! Fibers only put their operations into the ring's memory; one system call per turn of the worker's loop, or per second one, hands over those of all fibers, and the one that puts an idle worker to sleep does so
//! too. The result of an operation goes straight to the fiber that waits for it.
//!
//! In a crowd, receives are told only as fast as fibers run ([`Uring::tell_some`]). With hundreds of connections most have something to receive by the time that they ask: told at once, each would make one more of hundreds of fibers ready,
//! and when that runs, its socket, buffer and stack are out of the cache again, and once more when its answer is sent. So those that ask stand in a line before the ring (`Held`), and what one needs is warm from its receive to its next.
//!
//! # Flags
//! `SINGLE_ISSUER | DEFER_TASKRUN | TASKRUN_FLAG`: completions are not forced upon a running worker by interrupts, but posted when it asks for them; a flag in memory says that there are some. Until then
//! no other thread sees them; none could use them, since the fibers are settled. `COOP_TASKRUN`, where the kernel is older than 6.1, costs the same up to 1,000 connections, and more with 10,000 in
//! one of two noisy sets of runs (docs/uring.md).
//!
//! # Invariants
//! I1. `user_data` is the address of a [`Completion`] in the block, or a frame, of a fiber that waits until its result is there (law E2), or one of the small numbers below, which nobody waits for.
//! I2. An operation that was put into the ring, or is held, is told to the kernel before the worker sleeps.
//! I3. A receive that is held is told before it is given up: what was there in time is not missed.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;

use io_uring::squeue::Entry;
use io_uring::types::{Fd, Timespec};
use io_uring::{IoUring, cqueue, opcode};

use super::source::lost;
use crate::base::list::List;
use crate::base::prefetch::prefetch;
use crate::fiber::Control;
use crate::fiber::state::Cause;
use crate::os::bell::Bell;
use crate::os::clock;

/// Operations that can wait to be told to the kernel. Each is 64 bytes; when they are more, the kernel is entered in between. Arbitrary: four times the switches between two calls.
const ENTRIES: u32 = 256;
/// Completions that the ring holds. More are kept by the kernel, and brought by the next call.
const COMPLETIONS: u32 = 4096;

/// Receives are held back where those that are held and the fibers that are ready are more than this. By measurement: 50 connections gain nothing by it, 1,000 do; between them arbitrary. (Few are a crowd in programs that are not optimised, so that tests meet one.)
const CROWD: usize = if cfg!(debug_assertions) { 32 } else { 128 };
/// In a crowd, so many ready fibers are enough, and no more receives are told: what these fibers need is to fit into the cache. With a look after each turn 32 took less CPU time than 64, and 16 no less; with one after two turns, so many run between two looks.
const READY_ENOUGH: usize = if cfg!(debug_assertions) { 8 } else { 64 };
/// But so many in each look, so that fibers that are always ready leave some room. Arbitrary: half of what an echo's fibers ask for between two.
const TOLD_MIN: usize = if cfg!(debug_assertions) { 2 } else { 16 };
/// And one for each so long that it was between looks, where fibers compute or block for long: about what it takes to tell one.
const TELL_NS: u64 = 2_000;
/// And never more than this, since all else waits meanwhile. What was too much is not made up for: turns in which others had the CPU are long too, and the line was emptied after each. Arbitrary: half a millisecond by that.
const TOLD_MAX: usize = 256;

/// `user_data` of a cancel: its own result says nothing (the operation's does).
const NOBODY: u64 = 0;
/// `user_data` of the watch over the bell.
const BELL: u64 = 1;
/// `user_data` of the watch over the group's epoll instance (`roam.rs`).
const ROAM: u64 = 2;

/// Seconds that a new ring has to show that it works. It takes microseconds; arbitrary.
const PROOF_LIMIT_S: u64 = 10;

const ENTER_GETEVENTS: u32 = 1;
const ENTER_EXT_ARG: u32 = 1 << 3;
/// The worker's sleep is no wait for a disk: without it every idle worker counts as one, and top shows a busy machine.
const ENTER_NO_IOWAIT: u32 = 1 << 7;

/// What an operation came to, with the fiber that waits for it.
pub(crate) struct Completion {
    control: *const Control,
    result: Cell<Option<i32>>,
    /// Its number among those that were ever held back; `u64::MAX` if it was not.
    number: Cell<u64>,
}

impl Completion {
    /// For an operation of the caller, whose control block this is.
    pub(crate) fn new(control: &Control) -> Self {
        Self { control, result: Cell::new(None), number: Cell::new(u64::MAX) }
    }

    /// As `new`, in the caller's block. In its frame each answer that is read would miss the cache, the TLB and the page table, and the claim that follows would wait for that.
    ///
    /// # Safety
    /// As [`Control::new_deadline`].
    pub(crate) unsafe fn new_in_block(control: &Control) -> &Self {
        // SAFETY: the caller's promise.
        unsafe {
            let place = control.beside_deadline::<Self>();
            place.write(Self::new(control));
            &*place
        }
    }

    /// What the kernel said; `None` until then.
    pub(crate) fn result(&self) -> Option<io::Result<usize>> {
        self.result.get().map(|result| usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result)))
    }

    fn key(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}

/// Receives that the kernel is yet to be told of, the oldest first.
#[derive(Default)]
struct Held {
    /// Those that were taken out of the line have left their places, which are nobody's.
    entries: VecDeque<Entry>,
    /// The number of the first.
    first: u64,
    /// Without those places.
    len: usize,
}

impl Held {
    /// Gives its number, which no other has ever had.
    fn push(&mut self, entry: &Entry) -> u64 {
        self.entries.push_back(entry.clone());
        self.len += 1;
        self.first + self.entries.len() as u64 - 1
    }

    /// The oldest; `None` if there is none.
    fn pop(&mut self) -> Option<Entry> {
        loop {
            let entry = self.entries.pop_front()?;
            self.first += 1;
            if entry.get_user_data() != NOBODY {
                self.len -= 1;
                return Some(entry);
            }
        }
    }

    /// Takes out the one with this number, if it is there.
    fn take(&mut self, number: u64) -> Option<Entry> {
        let place = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let entry = self.entries.get_mut(place).filter(|entry| entry.get_user_data() != NOBODY)?;
        self.len -= 1;
        Some(std::mem::replace(entry, opcode::Nop::new().build().user_data(NOBODY)))
    }
}

/// The ring of one worker.
pub(crate) struct Uring {
    ring: IoUring,
    bell: RawFd,
    sleep_flags: u32,
    /// Whether it watches the group's epoll instance now.
    watches_roam: bool,
    /// Reaped while there was no list to put them in.
    woken: List<Control>,
    /// More than `CROWD` were ready or held at the last look: receives stand in line. Else none is held.
    is_crowded: bool,
    held: Held,
    /// The end of the last look, if it was in a crowd; else 0.
    looked_ns: u64,
}

impl Uring {
    /// An error if the kernel has no ring for us, or not all that we need of it.
    pub(crate) fn open(bell: &Bell) -> io::Result<Self> {
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_taskrun_flag().setup_submit_all().setup_clamp().setup_cqsize(COMPLETIONS).dontfork();
        let ring = match builder.clone().setup_defer_taskrun().build(ENTRIES) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => builder.setup_coop_taskrun().build(ENTRIES)?,
            built => built?,
        };
        let params = ring.params();
        if !params.is_feature_nodrop() || !params.is_feature_ext_arg() || !params.is_feature_fast_poll() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "the kernel's io_uring is too old (before 6.0)"));
        }
        let sleep_flags = if params.is_feature_no_iowait() { ENTER_NO_IOWAIT } else { 0 };
        let mut this = Self {
            ring,
            bell: bell.fd(),
            sleep_flags,
            watches_roam: false,
            woken: List::new(),
            is_crowded: false,
            held: Held::default(),
            looked_ns: 0,
        };
        this.watch_bell();
        Ok(this)
    }

    /// Has the ring do nothing, once, and waits for that as a worker does.
    ///
    /// # Errors
    /// What the kernel says if it does not.
    pub(crate) fn prove(mut self) -> io::Result<()> {
        // SAFETY: no memory of ours is involved.
        unsafe { self.put(&opcode::Nop::new().build().user_data(NOBODY)) };
        let limit = Timespec::new().sec(PROOF_LIMIT_S);
        loop {
            let unsent = self.ring.submission().len() as u32;
            match self.try_enter(unsent, 1, ENTER_GETEVENTS | self.sleep_flags, Some(&limit)) {
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => std::thread::yield_now(),
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        match self.ring.completion().next() {
            Some(done) if done.result() >= 0 => Ok(()),
            done => Err(io::Error::other(format!("an operation that does nothing came to {:?}", done.map(|done| done.result())))),
        }
    }

    /// Asks to be told of each ring of the bell.
    fn watch_bell(&mut self) {
        let watch = opcode::PollAdd::new(Fd(self.bell), libc::POLLIN as u32).multi(true).build().user_data(BELL);
        // SAFETY: no memory of ours is involved.
        unsafe { self.put(&watch) };
    }

    /// Is woken once when there is something at the epoll instance `roam`.
    pub(crate) fn watch_roam(&mut self, roam: RawFd) {
        if !self.watches_roam {
            self.watches_roam = true;
            let watch = opcode::PollAdd::new(Fd(roam), libc::POLLIN as u32).build().user_data(ROAM);
            // SAFETY: no memory of ours is involved.
            unsafe { self.put(&watch) };
        }
    }

    #[inline]
    pub(crate) fn unsent(&self) -> usize {
        // SAFETY: this thread alone has the ring, and no other view of the queue is alive.
        unsafe { self.ring.submission_shared().len() + self.held.len }
    }

    #[inline]
    pub(crate) fn has_found(&self) -> bool {
        // SAFETY: as above.
        let (submissions, completions) = unsafe { (self.ring.submission_shared(), self.ring.completion_shared()) };
        let is_found = !completions.is_empty() || submissions.taskrun() || submissions.cq_overflow() || !self.woken.is_empty();
        // More than the call that puts the worker to sleep tells.
        is_found || self.held.len > READY_ENOUGH
    }

    /// Puts an operation into the ring, or a receive into the line of those that are held; its result goes to `completion`, and then ends its owner's wait.
    ///
    /// # Safety
    /// All that `entry` points to, and `completion`, stay in place until the completion has a result (law E2). Its owner begins a wait before its worker next looks.
    pub(crate) unsafe fn submit(&mut self, entry: &mut Entry, completion: &Completion) {
        entry.set_user_data(completion.key());
        if self.is_crowded && entry.get_opcode() == u32::from(opcode::Recv::CODE) {
            completion.number.set(self.held.push(entry));
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { self.put(entry) };
    }

    /// Asks the kernel to give the operation of `completion` up. Its result comes all the same, and may be a success.
    pub(crate) fn cancel(&mut self, completion: &Completion) {
        if let Some(entry) = self.held.take(completion.number.get()) {
            // SAFETY: whoever submitted it waits for its result (I1).
            unsafe { self.put(&entry) };
        }
        let cancel = opcode::AsyncCancel::new(completion.key()).build().user_data(NOBODY);
        // SAFETY: no memory of ours is involved.
        unsafe { self.put(&cancel) };
    }

    unsafe fn put(&mut self, entry: &Entry) {
        loop {
            // SAFETY: the caller's promise.
            if unsafe { self.ring.submission().push(entry) }.is_ok() {
                return;
            }
            // It is full. What completes meanwhile is not told to anybody before the next look.
            self.send(ENTER_GETEVENTS);
            self.reap();
        }
    }

    /// Has so many of those that are held told by the next call, the oldest, or all if they are fewer.
    fn tell(&mut self, count: usize) {
        for _ in 0..count {
            let Some(entry) = self.held.pop() else { break };
            // Cold by now; in a row, so that the look-ups of their pages overlap.
            prefetch(buffer_of(&entry));
            // SAFETY: whoever submitted it waits for its result (I1).
            unsafe { self.put(&entry) };
        }
    }

    /// Has some of those that are held told by the next call, while so many fibers are ready.
    fn tell_some(&mut self, ready: usize) {
        self.is_crowded = self.held.len + ready > CROWD;
        if !self.is_crowded {
            return self.tell(self.held.len);
        }
        let since_ns = if self.looked_ns == 0 { 0 } else { clock::now_ns().saturating_sub(self.looked_ns) };
        let count = READY_ENOUGH.saturating_sub(ready).max(TOLD_MIN).max((since_ns / TELL_NS) as usize);
        self.tell(count.min(TOLD_MAX));
    }

    /// Tells the kernel what is in the ring.
    fn send(&mut self, flags: u32) {
        let unsent = self.ring.submission().len() as u32;
        self.enter(unsent, 0, flags, None);
    }

    /// Some errors are let pass: what was not told is told the next time (EBUSY: the kernel holds too many completions for us, EAGAIN: it has no memory now, EINTR, ETIME).
    fn enter(&mut self, unsent: u32, wanted: u32, flags: u32, limit: Option<&Timespec>) {
        if let Err(error) = self.try_enter(unsent, wanted, flags, limit)
            && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EAGAIN | libc::EBUSY))
        {
            lost("io_uring_enter", &error);
        }
    }

    fn try_enter(&mut self, unsent: u32, wanted: u32, flags: u32, limit: Option<&Timespec>) -> io::Result<()> {
        let submitter = self.ring.submitter();
        // SAFETY: what the entries point to is kept by those who put them there (I1); the limit outlives the call.
        let entered = unsafe {
            match limit {
                Some(limit) => {
                    let arg = GetEvents { sigmask: 0, sigmask_len: 0, min_wait_us: 0, limit: std::ptr::from_ref(limit) as u64 };
                    submitter.enter(unsent, wanted, flags | ENTER_EXT_ARG, Some(&arg))
                }
                None => submitter.enter::<libc::sigset_t>(unsent, wanted, flags, None),
            }
        };
        entered.map(drop)
    }

    pub(crate) fn look(&mut self, ready: usize, woken: &List<Control>) {
        self.tell_some(ready);
        let queue = self.ring.submission();
        let (unsent, owed) = (queue.len(), queue.taskrun() || queue.cq_overflow());
        drop(queue);
        if unsent != 0 || owed {
            self.send(ENTER_GETEVENTS);
        }
        self.reap();
        self.looked_ns = if self.is_crowded { clock::now_ns() } else { 0 };
        woken.append(&self.woken);
    }

    pub(crate) fn sleep(&mut self, deadline_ns: u64) {
        if self.ring.submission().len() + READY_ENOUGH > ENTRIES as usize {
            // To tell more would reap on the way, perhaps the bell, which does not ring twice.
            return self.send(ENTER_GETEVENTS);
        }
        self.tell(READY_ENOUGH);
        // A full queue has had some reaped already, whom nothing would wake again.
        if !self.woken.is_empty() {
            return;
        }
        if self.held.len != 0 {
            return self.send(ENTER_GETEVENTS);
        }
        let unsent = self.ring.submission().len() as u32;
        let flags = ENTER_GETEVENTS | self.sleep_flags;
        if deadline_ns == u64::MAX {
            return self.enter(unsent, 1, flags, None);
        }
        let left = deadline_ns.saturating_sub(clock::now_ns());
        let limit = Timespec::new().sec(left / 1_000_000_000).nsec((left % 1_000_000_000) as u32);
        self.enter(unsent, u32::from(left != 0), flags, Some(&limit));
    }

    /// Reads all completions that are there. They are no more than the operations under way, so this ends.
    fn reap(&mut self) {
        let (mut bell_is_gone, mut roam_has_come) = (false, false);
        for entry in self.ring.completion() {
            match entry.user_data() {
                NOBODY => {}
                BELL => bell_is_gone |= !cqueue::more(entry.flags()),
                ROAM => roam_has_come = true,
                key => {
                    let completion = key as *const Completion;
                    // SAFETY: I1 - the fiber waits until its result is there, so it and its block are alive. It is a fiber of this worker (F5), whom
                    // another cause may have claimed, and queued, already.
                    unsafe {
                        (*completion).result.set(Some(entry.result()));
                        let control = (*completion).control;
                        if let Some(claimed) = (*control).claim(Cause::Woken) {
                            self.woken.push(claimed.control.cast_mut());
                        }
                    }
                }
            }
        }
        if roam_has_come {
            self.watches_roam = false;
        }
        if bell_is_gone {
            self.watch_bell();
        }
    }
}

/// Where the buffer of a receive is: `addr` of `struct io_uring_sqe`.
fn buffer_of(entry: &Entry) -> *const u8 {
    const { assert!(size_of::<Entry>() == 64) };
    // SAFETY: an entry is that struct, whose third word of eight it is.
    unsafe { std::ptr::from_ref(entry).cast::<u64>().add(2).read() as *const u8 }
}

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct GetEvents {
    sigmask: u64,
    sigmask_len: u32,
    min_wait_us: u32,
    limit: u64,
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::Shutdown;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// `None` where there is no ring: it must be one that the kernel refuses to anybody.
    fn open(bell: &Bell) -> Option<Uring> {
        let refused = |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EPERM | libc::ENOSYS | libc::EACCES));
        match Uring::open(bell) {
            Err(error) if refused(&error) || error.kind() == io::ErrorKind::Unsupported => None,
            opened => Some(opened.expect("a ring that is not refused")),
        }
    }

    /// One that was reaped where a queue was full, and is not told yet, has come: it is for the next look, and no sleep comes before it.
    #[test]
    fn a_ring_that_has_found_somebody_does_not_sleep() {
        const LATE_NS: u64 = 5_000_000_000;
        let bell = Bell::new().unwrap();
        let Some(mut ring) = open(&bell) else { return };
        let control = crate::fiber::pool::take_shared();
        // SAFETY: a block of our own, in no other list.
        unsafe { ring.woken.push(control) };
        let begun_ns = clock::now_ns();
        ring.sleep(begun_ns + LATE_NS);
        assert!(clock::now_ns() - begun_ns < LATE_NS);
        assert_eq!(ring.woken.pop(), control);
    }

    /// So many operations that do nothing, put into a ring one after the other, with `after` each; whoever waits for them is claimed by nobody, and their results tell that they have come.
    fn put_many(ring: &mut Uring, count: usize, mut after: impl FnMut(&mut Uring)) -> Vec<Completion> {
        let control = crate::fiber::pool::take_shared();
        // SAFETY: a block of our own, which waits for nothing; it is never given back.
        let completions: Vec<_> = (0..count).map(|_| Completion::new(unsafe { &*control })).collect();
        for completion in &completions {
            // SAFETY: an operation that does nothing points to nothing; the completion stays where it is until all have come.
            unsafe { ring.submit(&mut opcode::Nop::new().build(), completion) };
            after(ring);
        }
        completions
    }

    /// Claim: operations that find the ring full are told to the kernel all the same, and what completes meanwhile is not lost.
    #[test]
    fn a_ring_that_is_full_takes_more() {
        let bell = Bell::new().unwrap();
        let Some(mut ring) = open(&bell) else { return };
        let mut fullest = 0;
        let completions = put_many(&mut ring, 3 * ENTRIES as usize, |ring| fullest = fullest.max(ring.unsent()));
        assert_eq!(fullest, ENTRIES as usize, "it was full");
        ring.look(0, &List::new());
        assert!(completions.iter().all(|completion| matches!(completion.result(), Some(Ok(0)))));
    }

    /// Claim: completions for which there is no room are kept by the kernel, the ring says so, and none is lost.
    #[test]
    fn a_ring_whose_completions_overflow_loses_none() {
        let bell = Bell::new().unwrap();
        let Some(mut ring) = open(&bell) else { return };
        let completions = put_many(&mut ring, COMPLETIONS as usize + 2 * ENTRIES as usize, |ring| {
            if ring.unsent() == ENTRIES as usize {
                ring.send(0);
            }
        });
        assert!(ring.ring.submission().cq_overflow(), "there was no room for all");
        let looks = (0..100).take_while(|_| {
            assert!(completions.iter().all(|completion| completion.result().is_some()) || ring.has_found(), "it says that there is more");
            ring.look(0, &List::new());
            completions.iter().any(|completion| completion.result().is_none())
        });
        assert!(looks.count() < 100, "all have come");
        assert!(completions.iter().all(|completion| matches!(completion.result(), Some(Ok(0)))));
    }

    #[test]
    fn the_buffer_of_a_receive_is_found() {
        let mut buffer = [0; 8];
        assert_eq!(buffer_of(&opcode::Recv::new(Fd(0), buffer.as_mut_ptr(), 8).build()), buffer.as_ptr());
    }

    /// A ring with more receives of a byte than are told at once, from a socket that has `there` bytes; and their completions.
    struct Crowd {
        ring: Uring,
        completions: Vec<Completion>,
        _buffers: Vec<Cell<u8>>,
        sockets: [UnixStream; 2],
        bell: Bell,
    }

    impl Crowd {
        const SIZE: usize = CROWD + 1_000;

        /// `None` where there is no ring.
        fn new(there: usize) -> Option<Self> {
            let bell = Bell::new().unwrap();
            let mut ring = open(&bell)?;
            let (mut writes, reads) = UnixStream::pair().unwrap();
            writes.write_all(&vec![7; there]).unwrap();
            ring.is_crowded = true;
            let control = crate::fiber::pool::take_shared();
            // SAFETY: a block of our own, which waits for nothing; it is never given back.
            let completions: Vec<_> = (0..Self::SIZE).map(|_| Completion::new(unsafe { &*control })).collect();
            let buffers: Vec<_> = (0..Self::SIZE).map(|_| Cell::new(0)).collect();
            for (completion, buffer) in completions.iter().zip(&buffers) {
                let mut entry = opcode::Recv::new(Fd(reads.as_raw_fd()), buffer.as_ptr(), 1).build();
                // SAFETY: buffer and completion stay in place until each has a result (`drop`).
                unsafe { ring.submit(&mut entry, completion) };
            }
            Some(Self { ring, completions, _buffers: buffers, sockets: [writes, reads], bell })
        }

        fn look(&mut self, ready: usize) {
            self.ring.look(ready, &List::new());
        }

        /// Which of them have a result.
        fn done(&self) -> Vec<usize> {
            (0..Self::SIZE).filter(|&i| self.completions[i].result().is_some()).collect()
        }
    }

    impl Drop for Crowd {
        fn drop(&mut self) {
            self.sockets[0].shutdown(Shutdown::Both).unwrap();
            let looks = (0..Self::SIZE).take_while(|_| {
                self.look(0);
                self.done().len() < Self::SIZE
            });
            let looks = looks.count();
            // The buffers are the kernel's until then.
            if looks == Self::SIZE {
                eprintln!("some receives were never told");
                std::process::abort();
            }
        }
    }

    /// Claim: in a crowd the oldest are told, and no more than there is time for; what is no receive does not wait for them.
    #[test]
    fn receives_are_told_as_fast_as_fibers_run() {
        let Some(mut crowd) = Crowd::new(Crowd::SIZE) else { return };
        assert_eq!(crowd.ring.unsent(), Crowd::SIZE + 1, "and the watch over the bell");
        assert!(crowd.ring.has_found(), "there is more to tell than a sleep does");
        crowd.look(0);
        let mut told = READY_ENOUGH;
        assert_eq!(crowd.done(), (0..told).collect::<Vec<_>>(), "as many as keep a worker busy, the oldest first");
        assert_ne!(crowd.ring.looked_ns, 0);
        crowd.ring.looked_ns = 0;
        crowd.look(READY_ENOUGH - (TOLD_MIN + 1));
        told += TOLD_MIN + 1;
        assert_eq!(crowd.done().len(), told, "as many as it lacks");
        crowd.ring.looked_ns = 0;
        // SAFETY: the block is never given back.
        let nop = Completion::new(unsafe { &*crowd.completions[0].control });
        // SAFETY: the operation points to nothing, and the completion stays where it is.
        unsafe { crowd.ring.submit(&mut opcode::Nop::new().build(), &nop) };
        crowd.look(10_000);
        told += TOLD_MIN;
        assert_eq!(crowd.done().len(), told, "and some though it lacks none");
        assert!(nop.result().is_some());
        // The fibers have computed for long, and for longer.
        crowd.ring.looked_ns = clock::now_ns() - 100 * TELL_NS;
        crowd.look(10_000);
        assert!(crowd.done().len() >= told + 100, "{} were told", crowd.done().len());
        told = crowd.done().len();
        crowd.ring.looked_ns = 1;
        crowd.look(10_000);
        told += TOLD_MAX;
        assert_eq!(crowd.done(), (0..told).collect::<Vec<_>>());
    }

    /// Claim: so many ready fibers are a crowd, and one less is none; the time of each turn counts, also of one before which nobody was held.
    #[test]
    fn many_that_are_ready_are_a_crowd() {
        let bell = Bell::new().unwrap();
        let Some(mut ring) = open(&bell) else { return };
        let (mut writes, reads) = UnixStream::pair().unwrap();
        writes.write_all(&[7; 3]).unwrap();
        let control = crate::fiber::pool::take_shared();
        // SAFETY: a block of our own, which waits for nothing; it is never given back.
        let completions = [(); 3].map(|()| Completion::new(unsafe { &*control }));
        let buffers = [(); 3].map(|()| Cell::new(0));
        let ask = |ring: &mut Uring, i: usize| {
            let mut entry = opcode::Recv::new(Fd(reads.as_raw_fd()), buffers[i].as_ptr(), 1).build();
            // SAFETY: buffer and completion stay in place until it has a result, which is asserted below.
            unsafe { ring.submit(&mut entry, &completions[i]) };
            ring.held.len
        };
        let look = |ring: &mut Uring, ready| {
            ring.look(ready, &List::new());
            completions.iter().filter(|completion| completion.result().is_some()).count()
        };
        assert_eq!(look(&mut ring, CROWD), 0);
        assert_eq!((ask(&mut ring, 0), ring.looked_ns), (0, 0));
        assert_eq!(look(&mut ring, CROWD + 1), 1);
        assert_ne!(ring.looked_ns, 0);
        assert_eq!(ask(&mut ring, 1), 1);
        assert_eq!(look(&mut ring, CROWD), 2, "with the one that is held they are a crowd");
        assert_eq!(ask(&mut ring, 2), 1);
        assert_eq!(look(&mut ring, CROWD - 1), 3);
        assert!(!ring.is_crowded);
    }

    /// Claim: where there is no crowd any more, the line is told to its end, and there is none after it.
    #[test]
    fn receives_that_are_few_are_not_held() {
        let Some(mut crowd) = Crowd::new(Crowd::SIZE) else { return };
        crowd.ring.tell(Crowd::SIZE - (CROWD + 1));
        crowd.look(0);
        assert!(crowd.ring.is_crowded, "those that are left stand in line, and so does who asks now");
        assert_ne!(crowd.ring.unsent(), 0);
        crowd.look(0);
        assert_eq!(crowd.done().len(), Crowd::SIZE);
        assert_eq!((crowd.ring.is_crowded, crowd.ring.looked_ns, crowd.ring.unsent()), (false, 0, 0));
        assert!(!crowd.ring.has_found());
    }

    /// Claim: a bell that has rung is not slept through, also where the ring is full of what was not told and one more is held.
    #[test]
    fn a_full_ring_does_not_sleep_through_its_bell() {
        const LATE_NS: u64 = 5_000_000_000;
        let Some(mut crowd) = Crowd::new(0) else { return };
        crowd.ring.tell(Crowd::SIZE - 1);
        crowd.ring.send(ENTER_GETEVENTS);
        assert_eq!(crowd.ring.unsent(), 1, "all are told but one, and so is the watch over the bell");
        let nops = put_many(&mut crowd.ring, ENTRIES as usize, |_| ());
        crowd.bell.ring();
        let begun_ns = clock::now_ns();
        crowd.ring.sleep(begun_ns + LATE_NS);
        assert!(clock::now_ns() - begun_ns < LATE_NS);
        crowd.look(0);
        assert!(nops.iter().all(|nop| nop.result().is_some()));
    }

    /// Claim (I2): nobody sleeps on receives that the kernel was not told of.
    #[test]
    fn a_ring_does_not_sleep_on_receives() {
        const LATE_NS: u64 = 5_000_000_000;
        let Some(mut crowd) = Crowd::new(0) else { return };
        while crowd.ring.held.len > READY_ENOUGH {
            let (held, begun_ns) = (crowd.ring.held.len, clock::now_ns());
            crowd.ring.sleep(begun_ns + LATE_NS);
            assert!(clock::now_ns() - begun_ns < LATE_NS, "it slept on {}", crowd.ring.held.len);
            assert_eq!(crowd.ring.held.len, held - READY_ENOUGH);
        }
        // And with the last ones told it does, until one has something.
        crowd.sockets[0].write_all(&[7]).unwrap();
        crowd.ring.sleep(u64::MAX);
        assert_eq!(crowd.ring.unsent(), 0);
        crowd.ring.reap();
        assert_eq!(crowd.done().len(), 1);
    }

    /// Claim (I3): one that is given up while it is held gets what is there, before all others; where nothing is there it is given up.
    #[test]
    fn a_receive_that_is_held_is_told_before_it_is_given_up() {
        let last = Crowd::SIZE - 1;
        let Some(mut crowd) = Crowd::new(Crowd::SIZE) else { return };
        crowd.look(0);
        crowd.ring.cancel(&crowd.completions[last]);
        crowd.ring.looked_ns = 0;
        crowd.look(10_000);
        assert!(matches!(crowd.completions[last].result(), Some(Ok(1))), "{:?}", crowd.completions[last].result());
        assert_eq!(crowd.done().len(), READY_ENOUGH + TOLD_MIN + 1);
        assert_eq!(crowd.ring.held.len, Crowd::SIZE - crowd.done().len());
        drop(crowd);

        let Some(mut crowd) = Crowd::new(0) else { return };
        // Twice, as one does that has waited in vain.
        (0..2).for_each(|_| crowd.ring.cancel(&crowd.completions[last]));
        assert_eq!(crowd.ring.held.len, Crowd::SIZE - 1);
        crowd.look(10_000);
        let result = crowd.completions[last].result().map(|result| result.map_err(|error| error.raw_os_error()));
        assert_eq!(result, Some(Err(Some(libc::ECANCELED))));
        assert_eq!(crowd.done(), [last]);
    }
}
