//! Starting a thread that nobody joins, and the CPUs that a thread may run on.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use super::cpu_list::Show;

static FAIL: AtomicBool = AtomicBool::new(false);

/// Starts `body` on a thread of its own, which takes turns as usual, also if a worker starts it: what it starts, a child process say, is to do so too.
pub(crate) fn start(name: String, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if FAIL.load(Relaxed) {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    let body = || {
        set_slice(0);
        body();
    };
    std::thread::Builder::new().name(name).spawn(body).map(drop)
}

/// The CPU that the caller runs on at this moment.
pub(crate) fn cpu() -> Option<usize> {
    // SAFETY: has no preconditions.
    usize::try_from(unsafe { libc::sched_getcpu() }).ok()
}

/// The CPU time after which the kernel has another thread run that waits for this one's CPU: of a worker. A third of the usual; less gained nothing.
pub(crate) const SHORT_TURN_NS: u64 = 500_000;
/// That of a worker beside which spares run, for those who are held: the kernel's least. One that is on duty, and has had a turn, waits until all that compute on its CPU have had as much. Closed `echo-hog`, some 30
/// workers held on 2 CPUs, p99 of the others: 8.3 ms with 0.5 ms, 2.5 with this (medians of 3).
pub(crate) const SHORTEST_TURN_NS: u64 = 100_000;

/// Asks the kernel for short turns where this thread shares a CPU with others; its share stays what it is. A worker that is woken is often put behind one that computes, on the same CPU, and waits there for the turn to end:
/// `echo-hog` at 2,000 requests a second, p99 of the others 734 -> 186 us with half a millisecond (medians of 7).
///
/// Where the kernel knows no such wish (before 6.12), or another policy than the usual one was chosen for the thread, nothing changes.
pub(crate) fn take_short_turns(turn_ns: u64) {
    set_slice(turn_ns);
}

/// 0 is as usual. What it cannot set stays as it is.
fn set_slice(slice_ns: u64) {
    if let Some(mut attributes) = attributes().filter(|attributes| attributes.sched_policy == libc::SCHED_OTHER as u32) {
        attributes.sched_runtime = slice_ns;
        attributes.sched_flags &= libc::SCHED_FLAG_RESET_ON_FORK as u64;
        // SAFETY: the kernel reads them, as long as they say that they are.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// How the kernel schedules this thread.
fn attributes() -> Option<libc::sched_attr> {
    // SAFETY: all zeroes is valid, and the kernel writes as much as there is room for.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        let status = libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size_of_val(&attributes), 0);
        (status == 0).then_some(attributes)
    }
}

/// Makes every start fail from now on, or no longer; for tests of exhaustion.
pub(crate) fn fail(now: bool) {
    FAIL.store(now, Relaxed);
}

/// A word of the kernel's masks of CPUs, which have as many as it takes: libc's `cpu_set_t` ends at 1024 CPUs.
type Word = libc::c_ulong;
const WORD_BITS: usize = Word::BITS as usize;
/// Words to begin with: 1024 CPUs. Most kernels want no more.
const WORDS_FIRST: usize = 1024 / WORD_BITS;
/// Words beyond which no kernel wants more: a million CPUs, far above what Linux can be built for (8192). One that refuses as many, as a sandbox that says EINVAL to what it forbids, refuses the call.
const WORDS_MAX: usize = (1 << 20) / WORD_BITS;

/// The CPUs that this thread, and those it starts, may run on, in order.
pub(crate) fn affinity() -> io::Result<Vec<usize>> {
    affinity_from(WORDS_FIRST, own_mask)
}

/// Asks with room for `words`, and twice as much each time that it is too little, up to [`WORDS_MAX`].
fn affinity_from(mut words: usize, ask: impl Fn(&mut [Word]) -> io::Result<()>) -> io::Result<Vec<usize>> {
    loop {
        let mut mask: Vec<Word> = vec![0; words];
        match ask(&mut mask) {
            Ok(()) => return Ok((0..words * WORD_BITS).filter(|id| mask[id / WORD_BITS] >> (id % WORD_BITS) & 1 == 1).collect()),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) && words < WORDS_MAX => words = (2 * words).max(1),
            Err(error) => return Err(error),
        }
    }
}

/// Writes this thread's mask; EINVAL if there is too little room for it.
fn own_mask(mask: &mut [Word]) -> io::Result<()> {
    // SAFETY: the call writes at most that many bytes to the mask, which has them.
    let status = unsafe { libc::sched_getaffinity(0, size_of_val(mask), mask.as_mut_ptr().cast()) };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets this thread run on `cpus` only.
///
/// # Errors
/// If the system refuses it, as where none of them is online and allowed to this process.
pub(crate) fn bind(cpus: &[usize]) -> io::Result<()> {
    let mut mask: Vec<Word> = vec![0; cpus.iter().max().map_or(1, |last| last / WORD_BITS + 1)];
    cpus.iter().for_each(|id| mask[id / WORD_BITS] |= 1 << (id % WORD_BITS));
    // SAFETY: the call reads that many bytes of the mask, which has them.
    if unsafe { libc::sched_setaffinity(0, size_of_val(&mask[..]), mask.as_ptr().cast()) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    Err(io::Error::new(error.kind(), format!("a thread cannot be bound to CPUs {}: {error}", Show(cpus))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Older kernels tell of no slice: it is 0 there. Under another policy than the usual one it stays what it is.
    #[test]
    fn a_thread_that_takes_short_turns_keeps_all_else_and_hands_nothing_down() {
        let (told, heard) = std::sync::mpsc::channel();
        let tell = |told: &std::sync::mpsc::Sender<_>| told.send(attributes().expect("any thread may ask that")).unwrap();
        let worker = std::thread::spawn(move || {
            tell(&told);
            take_short_turns(SHORT_TURN_NS);
            tell(&told);
            start("started".into(), move || tell(&told)).unwrap();
        });
        worker.join().unwrap();
        let [before, after, started] = std::array::from_fn(|_| heard.recv().unwrap());
        let rest = |of: &libc::sched_attr| (of.sched_policy, of.sched_nice, of.sched_priority, of.sched_flags);
        assert_eq!((rest(&after), rest(&started)), (rest(&before), rest(&before)));
        let is_set = before.sched_runtime != 0 && before.sched_policy == libc::SCHED_OTHER as u32;
        assert_eq!(after.sched_runtime, if is_set { SHORT_TURN_NS } else { before.sched_runtime });
        assert_eq!(started.sched_runtime, before.sched_runtime);
    }

    #[test]
    fn the_mask_is_read_whatever_room_is_offered_first() {
        let cpus = affinity().expect("a mask");
        assert!(!cpus.is_empty());
        assert_eq!(affinity_from(0, own_mask).expect("a mask"), cpus);
        assert_eq!(affinity_from(16 * WORDS_FIRST, own_mask).expect("a mask"), cpus);
    }

    #[test]
    fn a_system_that_refuses_every_room_is_asked_a_few_times() {
        let asked = Cell::new(0);
        for (code, times) in [(libc::EINVAL, 11), (libc::EPERM, 1)] {
            asked.set(0);
            let refuses = |_: &mut [Word]| {
                asked.set(asked.get() + 1);
                Err(io::Error::from_raw_os_error(code))
            };
            let error = affinity_from(WORDS_FIRST, refuses).expect_err("it is refused");
            assert_eq!((error.raw_os_error(), asked.get()), (Some(code), times));
        }
    }

    /// On a thread of its own, which takes the binding with it.
    #[test]
    fn a_bound_thread_runs_where_it_is_bound() {
        let cpus = affinity().expect("a mask");
        let bound = std::thread::spawn(move || {
            for &id in &cpus {
                bind(&[id]).expect("a CPU of ours");
                assert_eq!(affinity().expect("a mask"), [id]);
                // SAFETY: no memory is involved.
                assert_eq!(unsafe { libc::sched_getcpu() }, id as libc::c_int);
            }
            // A mask of more than 1024 CPUs is taken, of which this machine has but one.
            bind(&[cpus[0], 8191]).expect("a large mask");
            assert_eq!(affinity().expect("a mask"), cpus[..1]);
            bind(&cpus).expect("all CPUs of ours");
            assert_eq!(affinity().expect("a mask"), cpus);
            let refused = bind(&[]).expect_err("no CPU at all");
            assert!(refused.to_string().contains("cannot be bound to CPUs"), "{refused}");
        });
        bound.join().expect("the claims hold");
    }
}
