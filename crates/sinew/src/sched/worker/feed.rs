//! Fibers that found no stack: they get what a worker can spare, or are ended when nothing can give one any more.

use std::ptr;

use super::Worker;
use super::life::root;
use crate::fiber::Verdict;
use crate::fiber::stack::{CLASSES, Class, Stack};

impl Worker {
    /// Tries again for those that found no stack, with what this worker can spare for others.
    #[cold]
    pub(super) fn feed_starved(&self) {
        let mut spared = self.untold.take() | self.spare_stacks();
        self.group().note_spared(self.index);
        for class in 0..CLASSES {
            while self.feed_one(class) {}
            // What it has taken and not used, too: a larger one may be made of its mappings.
            spared |= self.spare_stacks();
        }
        if spared {
            self.groups.ask_for_starved(Some(self.group()));
        } else {
            self.groups.pass_stacks_on(self.group());
        }
    }

    /// Hands out what came with a stack that was taken to start a fiber, while others wait for one: that fiber may run for long.
    #[cold]
    pub(super) fn spare_rest(&self) {
        if self.spare_stacks() {
            self.groups.ask_for_starved(None);
        }
    }

    /// Hands out what this worker can spare; whether that is anything.
    fn spare_stacks(&self) -> bool {
        // SAFETY: I1, I2.
        unsafe { (*self.stacks.get()).share(0) }
    }

    /// Whether this worker has yet to see what it can spare for starved fibers.
    #[inline]
    pub(super) fn owes_stacks(&self) -> bool {
        self.groups.has_starved() && self.group().owes_stacks(self.index)
    }

    /// Starts a fiber that found no stack of this size; `false` if there is none, or still no stack.
    ///
    /// It is taken out only for a stack that is in hand: who leaves a stack meanwhile would not see it, and it would not see the stack.
    fn feed_one(&self, class: usize) -> bool {
        if !self.group().starves(class) {
            return false;
        }
        // SAFETY: I1, I2.
        let Ok(stack) = (unsafe { (*self.stacks.get()).take(Class::numbered(class as u8)) }) else { return false };
        // SAFETY: popped, so it is ours.
        let Some(control) = (unsafe { self.group().pop_starved(class).as_ref() }) else {
            // Others were faster.
            // SAFETY: I1, I2.
            unsafe { (*self.stacks.get()).give(stack) };
            return false;
        };
        self.groups.fed(self.group());
        self.judge(control);
        self.settle(control, stack, root);
        // SAFETY: it is started now, and in no list.
        unsafe { self.ready.push(ptr::from_ref(control).cast_mut()) };
        true
    }

    /// Ends the oldest fiber that found no stack, on a stack of the reserve; `false` if there is no such fiber, or no such stack.
    #[cold]
    pub(super) fn refuse_starved(&self) -> bool {
        let Some(stack) = self.group().take_reserve() else { return false };
        // SAFETY: popped, so it is ours.
        let Some(control) = (0..CLASSES).find_map(|class| unsafe { self.group().pop_starved(class).as_ref() }) else {
            self.group().give_reserve(stack).expect("a stack of the reserve");
            return false;
        };
        control.condemn(if self.group().is_stopping() { Verdict::ShutDownInReserve } else { Verdict::NoStack });
        // Its stack is this group's, and must come back here.
        control.set_pinned();
        self.groups.fed(self.group());
        self.settle(control, stack, root);
        // SAFETY: it is started now, and in no list.
        unsafe { self.ready.push(ptr::from_ref(control).cast_mut()) };
        true
    }

    /// Whether fibers starve and nothing that could give them a stack can run: then the oldest has been readied to be ended.
    pub(super) fn must_refuse(&self) -> bool {
        if !self.groups.starves_for_good() || !self.groups.all_rest_for_good() {
            return false;
        }
        if !self.group().has_starved() {
            self.groups.pass_stacks_on(self.group());
            return false;
        }
        // Once more: a stack may have been on its way from one place to another when the last one looked.
        self.feed_starved();
        !self.ready.is_empty() || self.refuse_starved()
    }

    #[cold]
    pub(super) fn give_left(&self, stack: Stack) {
        if let Err(own) = self.group().give_reserve(stack) {
            // SAFETY: I1, I2.
            unsafe { (*self.stacks.get()).give(own) };
        }
    }
}
