//! How a running fiber lets others run: it yields, or suspends until its wait has ended.
//!
//! It goes straight to the next ready fiber while the turn lasts, else to the worker's loop. One that has marks (hooks, a promise to move) always goes by the loop, which sees to it once its registers are saved.

use std::mem::MaybeUninit;
use std::ptr;

use super::{Worker, here};
use crate::base::atomic::Relaxed;
use crate::base::wheel::Entry;
use crate::fiber::Control;
use crate::fiber::hooks::{Region, When};
use crate::fiber::state::Cause;
use crate::fiber::switch::switch_keeping_float;
use crate::os::{audit, fork};
use crate::sched::counters::add;

impl Worker {
    /// Lets every ready fiber run before `me` goes on.
    ///
    /// # Panics
    /// If `me` must not suspend.
    #[inline]
    #[track_caller]
    pub(crate) fn yield_now(&self, me: &Control) {
        if me.is_marked() {
            return self.yield_marked(me);
        }
        if self.ready.is_empty() && self.may_skip_yield() {
            return;
        }
        // SAFETY: F1 - a running fiber is in no list.
        unsafe {
            self.ready.push(ptr::from_ref(me).cast_mut());
            if ptr::eq(self.ready.first(), me) {
                // No other fiber is ready: those not yet started are whom this yield is for.
                self.others_due.set(true);
                if self.seat.moving.len() == 0 {
                    // It is all that is this worker's own, and has had its turn.
                    self.others_had.set(false);
                }
                self.go(me, self.back_to_loop());
            } else {
                self.leave(me);
            }
        }
    }

    #[cold]
    #[inline(never)]
    #[track_caller]
    fn yield_marked(&self, me: &Control) {
        if let Some(region) = self.region(me) {
            region.refuse();
        }
        if !me.is_held() && !self.group().settings.shakes && self.ready.is_empty() && self.may_skip_yield() {
            return;
        }
        if !self.has_movers() && self.ready.is_empty() {
            // Those not yet started are whom this yield is for.
            self.others_due.set(true);
        }
        // SAFETY: F1 - a running fiber is in no list.
        unsafe { self.make_way(me) };
    }

    /// Queues `me`, which is ready, behind all others, and goes to the loop; with its hooks before and after.
    ///
    /// # Safety
    /// `me` is the running fiber, and may suspend.
    pub(super) unsafe fn make_way(&self, me: &Control) {
        let held = me.is_held();
        if held {
            self.run_hooks(me, When::Suspend);
        }
        // SAFETY: the caller's promise; in this state (`RUNNING`) no hook can have put it into a list.
        unsafe {
            if me.may_move() {
                self.leave_moving(me, true);
            } else {
                self.ready.push(ptr::from_ref(me).cast_mut());
                self.go(me, self.back_to_loop());
            }
        }
        if held {
            resume_hooks(me);
        }
    }

    /// Whether a started fiber that may move is ready here.
    #[inline]
    pub(super) fn has_movers(&self) -> bool {
        !self.seat.next.load(Relaxed).is_null() || !self.seat.moving.has_none()
    }

    /// Whether nobody else wants this thread. Looked at from time to time only: timers and the group are the loop's.
    #[inline]
    fn may_skip_yield(&self) -> bool {
        let budget = self.budget.get();
        if budget == 0 {
            return false;
        }
        if self.seat().has_mail() {
            self.seat().take_mail(&self.ready);
            return false;
        }
        let skips = self.seat().children.has_none() && !self.has_movers() && self.group().queued() == 0 && self.source_waits.get() == 0;
        if skips {
            // It counts as a switch. Who does switch is counted where it goes.
            self.budget.set(budget - 1);
        }
        skips
    }

    /// Suspends `me` until whoever ends its wait has made it ready.
    ///
    /// Not inlined, but all that it does is: one frame between a waiting call and the switch.
    ///
    /// # Safety
    /// `me` is the running fiber, may suspend (`region`) and has begun a wait that somebody will end.
    #[inline(never)]
    pub(crate) unsafe fn suspend(&self, me: &Control) -> Cause {
        if me.is_marked() {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend_marked(me) };
        }
        self.count_unwinding();
        // SAFETY: the caller's promise.
        unsafe { self.leave(me) };
        end_wait(me)
    }

    #[cold]
    #[inline(never)]
    unsafe fn suspend_marked(&self, me: &Control) -> Cause {
        self.count_unwinding();
        if !me.is_held() {
            // SAFETY: the caller's promise.
            unsafe { self.leave_moving(me, false) };
            if me.is_timed() {
                note_latency(me);
            }
            return me.state.end_wait_of_mover();
        }
        // SAFETY: the caller's promise.
        unsafe { self.leave_marked(me, || ()) };
        let cause = end_wait(me);
        resume_hooks(me);
        cause
    }

    #[inline]
    pub(super) fn count_unwinding(&self) {
        if std::thread::panicking() {
            add(&self.seat().counters.unwinding_waits, 1);
        }
    }

    /// As `suspend`, but at `deadline_ns` the wait ends by itself.
    ///
    /// # Safety
    /// As `suspend`.
    #[inline]
    pub(crate) unsafe fn suspend_until(&self, me: &Control, deadline_ns: u64) -> Cause {
        // SAFETY: the caller's promise.
        unsafe { if deadline_ns == u64::MAX { self.suspend(me) } else { self.suspend_timed(me, deadline_ns) } }
    }

    /// As `suspend_until`, with a deadline.
    ///
    /// # Safety
    /// As `suspend`.
    #[inline(never)]
    unsafe fn suspend_timed(&self, me: &Control, deadline_ns: u64) -> Cause {
        if me.join.is_done() {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend_ended_until(me, deadline_ns) };
        }
        // SAFETY: a fiber that waits is in user code, and has no outcome yet: the slot is free until the wait is over.
        unsafe { self.suspend_with(me, me.new_deadline(), deadline_ns) }
    }

    /// As `suspend_until`, by a fiber whose outcome is in its slot: the foreign waker that is told of its end waits.
    #[cold]
    #[inline(never)]
    unsafe fn suspend_ended_until(&self, me: &Control, deadline_ns: u64) -> Cause {
        let entry = Entry::new(ptr::from_ref(me).cast());
        // SAFETY: the caller's promise; the entry outlives the call.
        unsafe { self.suspend_with(me, &entry, deadline_ns) }
    }

    /// # Safety
    /// As `suspend`; and `entry` is a new one for `me`, which stays in place until this returns.
    #[inline(always)]
    unsafe fn suspend_with(&self, me: &Control, entry: &Entry, deadline_ns: u64) -> Cause {
        if me.may_move() && self.group().is_spare(self.index) && self.group().roam.instance().is_ok() {
            // SAFETY: the caller's promise.
            return unsafe { self.suspend_on_spare(me, entry, deadline_ns) };
        }
        let was_bound = me.may_move() && me.set_bound(true);
        // SAFETY: the caller's promise; I1, I2. One that may move is bound meanwhile, so the timers are the same.
        unsafe {
            (*self.timers.get()).arm(entry, deadline_ns);
            let cause = self.suspend(me);
            (*self.timers.get()).disarm(entry);
            if me.may_move() {
                me.set_bound(was_bound);
            }
            cause
        }
    }

    /// As `suspend_with`, by one that may move and is on a spare: its deadline is kept at the group's roam, which is open, so that the spare may sit out meanwhile.
    ///
    /// # Safety
    /// As `suspend_with`.
    #[inline(never)]
    unsafe fn suspend_on_spare(&self, me: &Control, entry: &Entry, deadline_ns: u64) -> Cause {
        let group = self.group();
        if group.roam.begin_wait() {
            group.call_lookout();
        }
        // SAFETY: the caller's promise. The fiber counts as one that waits there, and takes the deadline out before it goes on, unless that has ended the wait (`roam.rs`, I2). A group is there while any fiber of its runtime is,
        // wherever that goes on.
        unsafe {
            group.roam.arm(entry, deadline_ns);
            let cause = self.suspend(me);
            if cause != Cause::TimedOut {
                group.roam.disarm(entry);
                // Who finds its deadline counts it out; nobody else does.
                group.roam.end_wait();
            }
            cause
        }
    }

    /// Goes from `me` to the next ready fiber, or to the loop.
    #[inline(always)]
    pub(super) unsafe fn leave(&self, me: &Control) {
        let to = self.hand_over();
        // SAFETY: the caller's promise; `hand_over` gave a place that nobody else goes on at.
        unsafe { self.go(me, to) };
    }

    #[inline(always)]
    pub(super) unsafe fn go(&self, me: &Control, to: *mut u8) {
        let frame = MaybeUninit::<u8>::uninit();
        me.note_depth(ptr::from_ref(&frame) as usize);
        if cfg!(debug_assertions) {
            audit::suspends(me, (ptr::from_ref(&frame) as usize).wrapping_sub(me.stack_bottom()));
        }
        // SAFETY: F1, F3 - `to` is the loop, or a fiber just taken from this worker's list.
        unsafe { switch_keeping_float(me.sp_place(), to) };
        if cfg!(debug_assertions) {
            let current = here().map_or(ptr::null(), |worker| worker.current.get());
            assert!(fork::is_child() || ptr::eq(current, me), "F2: another fiber stands where {me} goes on");
        }
    }

    /// Chooses who runs next: a ready fiber while the turn lasts, else the loop. Gives the place to go on at.
    #[inline]
    pub(super) fn hand_over(&self) -> *mut u8 {
        let budget = self.budget.get();
        if budget == 0 || self.ready.is_empty() {
            return self.back_to_loop();
        }
        self.budget.set(budget - 1);
        let next = self.pop_ready();
        self.current.set(next);
        // SAFETY: the list was not empty; F1 - the fiber is ours now, and started.
        unsafe {
            debug_assert!(ptr::eq((*next).home().cast(), self.seat()), "F5: fiber {} in another worker's list", *next);
            (*next).sp()
        }
    }

    pub(super) fn back_to_loop(&self) -> *mut u8 {
        self.current.set(ptr::null());
        self.sp.get()
    }

    /// Leaves `me`, which has marks, with its hooks before and after. By the loop: a hook may have ended the wait that was begun, and then `me` is in
    /// the ready list, where `leave` would find it before its registers are saved (F3).
    ///
    /// # Safety
    /// As `leave`; and `me` is in no region, but through the fault of a wait that was begun without asking, and cannot be undone.
    #[cold]
    #[inline(never)]
    unsafe fn leave_marked(&self, me: &Control, begin: impl FnOnce()) {
        if let Some(region) = self.region(me) {
            eprintln!("sinew: bug: fiber {me} began to wait inside {region}");
            std::process::abort();
        }
        self.run_hooks(me, When::Suspend);
        begin();
        // SAFETY: the caller's promise; hooks cannot suspend, so all is as it was.
        unsafe {
            match me.may_move() {
                true => self.leave_moving(me, false),
                false => self.go(me, self.back_to_loop()),
            }
        }
    }

    fn run_hooks(&self, me: &Control, when: When) {
        if let Some(locals) = me.locals.get() {
            locals.run_hooks(when, |region| _ = self.set_region(me, Some(region)));
            self.set_region(me, None);
        }
    }

    /// The region that the running fiber `me` is in, if there is one.
    #[inline]
    pub(crate) fn region(&self, me: &Control) -> Option<Region> {
        if me.must_not_suspend() { self.region.get() } else { None }
    }

    /// Changes the region that the running fiber `me` is in; gives the one before.
    pub(crate) fn set_region(&self, me: &Control, region: Option<Region>) -> Option<Region> {
        me.set_must_not_suspend(region.is_some());
        self.region.replace(region)
    }
}

/// Ends the wait of `me`, which goes on, and counts how long it was ready if its wake is timed. Here and not where it is switched to: most switches of a busy worker are those of yields, which are never timed, and would look in vain.
#[inline]
pub(super) fn end_wait(me: &Control) -> Cause {
    if me.is_timed() {
        note_latency(me);
    }
    me.state.end_wait()
}

/// Not inlined: what it keeps over its calls would lie in the frame of every wait, and be one more cold line of most stacks.
#[cold]
#[inline(never)]
fn note_latency(me: &Control) {
    if let Some(worker) = here() {
        worker.seat().counters.latency.record(me.take_ready_time());
    }
}

/// Runs the hooks of a fiber that goes on, wherever that is.
fn resume_hooks(me: &Control) {
    if let Some(worker) = here() {
        worker.run_hooks(me, When::Resume);
    }
}
