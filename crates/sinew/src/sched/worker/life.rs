//! How a fiber begins and ends: it gets a stack and is settled, runs its closure, pays what its end owes, and leaves the stack to the next.
//!
//! A fiber that ends is followed on the same stack, in place, by the newest child, if nobody else is ready: neither a switch nor a look at the caches.

use std::ptr;

use super::leave::end_wait;
use super::{Worker, here, make_ready, recycle};
use crate::base::atomic::Relaxed;
use crate::fiber::stack::Stack;
use crate::fiber::state::Cause;
use crate::fiber::switch::{FloatControl, Root, leave_for_good, prepare};
use crate::fiber::task::{Ended, NeverRan, quietly};
use crate::fiber::{Control, Verdict, Watcher};
use crate::os::fork;
use crate::sched::counters::add;

impl Worker {
    /// Gives an unstarted fiber a stack and settles it here; `false` if there is none and it was put aside.
    pub(super) fn start(&self, control: &Control, root: Root) -> bool {
        debug_assert!(!control.is_started(), "F1: fiber {control} is started twice");
        self.judge(control);
        self.note_start(control);
        // SAFETY: I1, I2.
        let taken = unsafe { (*self.stacks.get()).take(control.class()) };
        match taken {
            Ok(stack) => {
                self.settle(control, stack, root);
                true
            }
            Err(why) => {
                // SAFETY: the fiber is unstarted and ours.
                unsafe { self.groups.starve(self.group(), control, &why) };
                false
            }
        }
    }

    /// Counts how long it was ready before its first run, if that is timed.
    #[inline]
    fn note_start(&self, control: &Control) {
        if control.is_timed() {
            self.seat.counters.start_latency.record(control.take_ready_time());
        }
    }

    /// Nothing begins to run in a runtime that is being shut down.
    pub(super) fn judge(&self, control: &Control) {
        if self.group().is_stopping() && !control.is_condemned() {
            control.condemn(Verdict::ShutDown);
        }
    }

    pub(super) fn settle(&self, control: &Control, stack: Stack, root: Root) {
        let arg = ptr::from_ref(control).cast_mut().cast();
        // SAFETY: the stack is ours and unused.
        let sp = unsafe { prepare(stack.bottom(), stack.top(), root, arg) };
        self.settle_at(control, stack, sp);
    }

    fn settle_at(&self, control: &Control, stack: Stack, sp: *mut u8) {
        control.settle(ptr::from_ref(self.seat()).cast(), stack, sp);
        self.starts.set(self.starts.get().saturating_add(1));
        if control.may_move() {
            self.groups.mover_comes();
            if self.group().is_stopping() && !control.state.is_sheltered() {
                // A shutdown looks for what has started; it may have looked before.
                let _ = control.state.cancel();
            }
        } else {
            self.count_settled(1);
        }
    }

    fn count_settled(&self, change: isize) {
        self.settled.set(self.settled.get().wrapping_add_signed(change));
        self.seat().counters.settled.store(self.settled.get(), Relaxed);
    }

    /// Runs an unstarted fiber at once, in the place of `me`, which is queued.
    ///
    /// # Safety
    /// The child is unstarted and the caller's alone, `me` is the running fiber and may suspend.
    pub(crate) unsafe fn dispatch(&self, me: &Control, child: &'static Control) {
        add(&self.seat().counters.spawned, 1);
        let by_the_loop = me.is_marked() || self.budget.get() == 0;
        if !self.start(child, if by_the_loop { root_of_dispatched } else { root }) {
            return;
        }
        // SAFETY: F1 - a running fiber is in no list; the child is started, in no list, and gone to or left to the loop.
        unsafe {
            if by_the_loop {
                self.urgent.set(child);
                self.make_way(me);
                // It has had its turn again, and all before it: this is no chain that keeps others waiting.
                here().into_iter().for_each(|worker| worker.urgent_runs.set(0));
                return;
            }
            self.ready.push(ptr::from_ref(me).cast_mut());
            self.budget.set(self.budget.get() - 1);
            self.current.set(child);
            self.go(me, child.sp());
        }
    }

    /// Suspends `me`, which waits for `child`: if that is the newest unstarted child, it runs at once, unless there are hooks to run first.
    ///
    /// # Safety
    /// As `suspend`.
    pub(crate) unsafe fn suspend_for(&self, me: &Control, child: &Control) -> Cause {
        let wanted = ptr::from_ref(child).cast_mut();
        // SAFETY: the caller's promise; a child taken from the deque is ours, and started before it is gone to.
        unsafe {
            // Not where fibers wait for stacks: what is not needed of those that were taken for one is handed out by the loop alone (`stack.rs`, I2).
            let may_go = self.budget.get() != 0 && !me.is_marked() && !self.groups.has_starved();
            if may_go && self.seat().children.pop_if_newest(wanted) && self.start(child, root) {
                self.budget.set(self.budget.get() - 1);
                self.current.set(child);
                self.count_unwinding();
                self.go(me, child.sp());
                return end_wait(me);
            }
            self.suspend(me)
        }
    }

    /// The fiber has ended on the stack we stand on: finds the next one for this stack, or the place to leave it for.
    fn after_end(&self, control: &Control) -> AfterEnd {
        let moved = control.may_move();
        if !moved {
            self.count_settled(-1);
        }
        add(&self.seat().counters.ended, 1);
        // SAFETY: F4 - the stack goes to the next fiber in place, or to caches of this worker, which nobody else can take from
        // before this stack has been left (`stack.rs`, I2).
        let stack = unsafe { control.take_stack() };
        let condemned = control.is_condemned();
        control.leave_home();
        if control.release() {
            // SAFETY: the last reference is gone.
            unsafe { recycle(control) };
        }
        self.feed.set(self.groups.has_starved());
        if moved {
            self.groups.mover_goes();
        }
        if condemned {
            // It may be one of the group's reserve, which others could take at once (F4): the loop gives it back.
            self.left_stack.set(Some(stack));
            return AfterEnd::Leave(self.back_to_loop());
        }
        // Whoever is ready goes first; most often it is who has waited for this one.
        let may_stay = self.ready.is_empty() && !self.has_movers() && self.budget.get() != 0 && !self.group().is_stopping();
        if let Some(next) = may_stay.then(|| self.child_for(&stack)).flatten() {
            self.budget.set(self.budget.get() - 1);
            // Not `prepare`: it would write over the frame we stand on. The place to begin at is never gone to.
            let top = stack.top() as *mut u8;
            self.settle_at(next, stack, top);
            self.current.set(next);
            self.note_start(next);
            return AfterEnd::RunHere(next);
        }
        // SAFETY: I1, I2.
        unsafe { (*self.stacks.get()).give(stack) };
        AfterEnd::Leave(self.hand_over())
    }

    /// The newest child, if it can use `stack` as it is.
    fn child_for(&self, stack: &Stack) -> Option<&'static Control> {
        // SAFETY: popped, so it is ours; a block outlives its fiber's end.
        let child: &'static Control = unsafe { self.seat().children.pop().as_ref()? };
        debug_assert!(!child.is_started(), "F1: fiber {child}, which has started, among the children");
        if child.class() == stack.class() {
            return Some(child);
        }
        // It was the newest a moment ago and there is room where it was.
        let pushed = self.seat().children.push(ptr::from_ref(child).cast_mut());
        debug_assert!(pushed, "no room for a child that was just taken out");
        // Whoever was woken for it has perhaps looked meanwhile (S1). A quiet one is told of early, which does no harm.
        self.announce(1);
        None
    }
}

enum AfterEnd {
    /// Run this fiber on the stack we stand on.
    RunHere(&'static Control),
    /// Leave for this place.
    Leave(*mut u8),
}

/// What that of a dispatched fiber begins with whose maker may move: others may have the maker from now on, and not before.
unsafe extern "C" fn root_of_dispatched(arg: *mut u8) -> ! {
    here().into_iter().for_each(Worker::see_to_left);
    // SAFETY: as there.
    unsafe { root(arg) }
}

/// What every other fiber's stack begins with.
pub(super) unsafe extern "C" fn root(arg: *mut u8) -> ! {
    // SAFETY: `settle` gave the control block of the fiber whose stack this is.
    let mut control: &Control = unsafe { &*arg.cast() };
    loop {
        FloatControl::DEFAULT.set();
        run_to_end(control);
        let Some(worker) = here() else { end_of_child() };
        match worker.after_end(control) {
            AfterEnd::RunHere(next) => control = next,
            // SAFETY: F4 - nothing on this stack is used any more; `to` is the loop or a fiber taken from this worker's list.
            AfterEnd::Leave(to) => unsafe { leave_for_good(to) },
        }
    }
}

/// A fiber that forked has ended in the child too, and there is nothing to go on with.
#[cold]
pub(super) fn end_of_child() -> ! {
    fork::abort("a fiber ended or suspended in a forked child");
}

/// Runs user code to its end and pays what the end owes.
#[inline(never)]
fn run_to_end(control: &Control) {
    let table = control.table();
    // Now: who joins it may be gone, and with it the root that names the tally, as soon as the outcome is stored.
    let tally = control.tally();
    // SAFETY: F2 - the fiber is running; it is run or refused once.
    let ended = unsafe { if control.is_condemned() { refuse(control) } else { (table.run)(control) } };
    match ended {
        Ended::Unseen => {}
        // SAFETY: `join` made the watcher field the fiber's (`join.rs`, I1).
        Ended::Watched => match unsafe { control.take_watcher() } {
            // SAFETY: a watcher waits until it is claimed, so its block is alive.
            Watcher::Waiter(waiter) => make_ready(unsafe { (*waiter).claim(Cause::Woken) }.expect("only the end wakes a joiner")),
            Watcher::Task(waker) => quietly(|| waker.wake()),
        },
        Ended::InLostPanic => control.report_lost(),
    }
    if let Some(tally) = tally {
        let owner = tally.owner();
        if tally.leave() {
            // SAFETY: the owner waits until the last child, this one, has claimed it, so its block is alive.
            make_ready(unsafe { (*owner).claim(Cause::Woken) }.expect("only the last child wakes a scope"));
        }
    }
}

/// Ends a condemned fiber without having run it.
///
/// # Safety
/// The fiber is running, and was neither run nor refused.
#[cold]
#[inline(never)]
unsafe fn refuse(control: &Control) -> Ended {
    let why = match control.verdict() {
        Verdict::NoStack => here().expect("a fiber runs on a worker").group().starved_why(),
        Verdict::Run | Verdict::ShutDown | Verdict::ShutDownInReserve => NeverRan::shut_down(),
    };
    // SAFETY: the caller's promise.
    unsafe { (control.table().refuse)(control, why) }
}
