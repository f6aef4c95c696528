//! Deadlines in order: arming and disarming in constant time, entries linked through what waits.
//!
//! Seven levels of 256 slots; a slot of level n spans 256^n ticks of 1,024 ns, so a thousand years fit. An entry sits at the level of the highest
//! group of eight bits in which its tick differs from the wheel's, and moves down as the wheel approaches: a sleep of less than 67 ms moves once at most, one of 17 s twice; none does that is
//! disarmed first, as most deadlines are. With 64 slots to a level they moved once more, and whatever began a slot of 268 ms moved all of its sleepers at once. A binary heap was rejected: it costs log n and a back-pointer per
//! entry, and either keeps cancelled entries (bthread) or moves others to fill the hole.
//!
//! # Picture
//! ```text
//! tick  = ..00000101 00000011    level 0: slots 4..255 hold ticks ..00000101 000001xx and up
//!               |        |       level 1: slots 6..255 hold ticks ..00000110 xxxxxxxx and up
//!           level 1  level 0     an entry of an upper level is later than all of the levels below it
//! ```
//!
//! # Invariants
//! I1. An armed entry is in exactly the list of the slot that it names, and that slot's bit is set; the entry's owner keeps it in place.
//! I2. Every armed entry's tick is later than the wheel's. Its slot index at its level is above the wheel's own digit there.
//! I3. An entry fires when its deadline has passed, never before: ticks are rounded up when armed, down when the clock is read.

use std::cell::Cell;
use std::ptr;

use super::prefetch::prefetch;

const LEVELS: usize = 7;
const DIGIT_BITS: u32 = 8;
const SLOTS: usize = 1 << DIGIT_BITS;
/// Lists per slot, walked side by side. Where many sleep each entry is a miss, and those of one list come one after the other: 100,000 sleeps took 39 ms of CPU time for them with one list, 16 with
/// four; and in all 306 ms with four, 290 with eight, 280 with sixteen (another machine, medians of 6). A slot is two cache lines so.
const CHAINS: usize = 16;
const TICK_NS_LOG2: u32 = 10;
/// Ticks ahead of the wheel beyond which a deadline is parked at the top level and looked at again there: a thousand years.
const HORIZON: u64 = 1 << (DIGIT_BITS * LEVELS as u32 - 1);
/// Entries of the earliest slot that are looked at for the exact next deadline; in a fuller slot its start must do.
const EXACT_SCAN: usize = 64;

/// Entries that fire together: some 16 come due at a time where 100,000 sleep. Arbitrary above that.
const DUE_MAX: usize = 32;

const NOT_ARMED: u16 = u16::MAX;

/// One deadline; lives with what waits for it. With many of them each is cold, so whatever the wheel does touches one of each list at a time, and asks for the next ahead.
pub(crate) struct Entry {
    next: Cell<*const Entry>,
    /// Null for the first of its list, and then the slot is asked.
    before: Cell<*const Entry>,
    place: Cell<u16>,
    deadline_ns: Cell<u64>,
    owner: *const (),
}

impl Entry {
    /// An unarmed entry. `owner` means something to the caller only.
    pub(crate) const fn new(owner: *const ()) -> Self {
        Self { next: Cell::new(ptr::null()), before: Cell::new(ptr::null()), place: Cell::new(NOT_ARMED), deadline_ns: Cell::new(0), owner }
    }

    pub(crate) fn owner(&self) -> *const () {
        self.owner
    }

    /// Whether it is in a wheel: armed, and neither fired nor disarmed since.
    pub(crate) fn is_armed(&self) -> bool {
        self.place.get() != NOT_ARMED
    }
}

type Slot = [*const Entry; CHAINS];

/// Which slots of a level have entries.
struct Occupied([u64; SLOTS / 64]);

impl Occupied {
    fn insert(&mut self, slot: usize) {
        self.0[slot / 64] |= 1 << (slot % 64);
    }

    fn remove(&mut self, slot: usize) {
        self.0[slot / 64] &= !(1 << (slot % 64));
    }

    fn first(&self) -> Option<usize> {
        let word = self.0.iter().position(|&bits| bits != 0)?;
        Some(word * 64 + self.0[word].trailing_zeros() as usize)
    }
}

/// The armed deadlines of one thread.
pub(crate) struct Wheel {
    tick: u64,
    armed: usize,
    occupied: [Occupied; LEVELS],
    slots: [[Slot; SLOTS]; LEVELS],
    /// The chain of its slot that the next entry goes to.
    chain: usize,
}

impl Wheel {
    /// An empty one, never on the caller's stack, which may be a small one.
    pub(crate) fn boxed(now_ns: u64) -> Box<Self> {
        // SAFETY: numbers and null pointers, all zero, are an empty wheel.
        let mut wheel = unsafe { Box::<Self>::new_zeroed().assume_init() };
        wheel.tick = now_ns >> TICK_NS_LOG2;
        wheel
    }

    /// The moment from which on an entry with this deadline fires (I3).
    pub(crate) fn fires_ns(deadline_ns: u64) -> u64 {
        first_tick(deadline_ns).saturating_mul(1 << TICK_NS_LOG2)
    }

    pub(crate) fn armed(&self) -> usize {
        self.armed
    }

    /// Puts `entry` in; it fires once `deadline_ns` has passed.
    ///
    /// # Safety
    /// `entry` is not armed, and stays where it is until it fires or is disarmed (I1).
    pub(crate) unsafe fn arm(&mut self, entry: *const Entry, deadline_ns: u64) {
        // SAFETY: the caller gives a valid entry.
        unsafe { &*entry }.deadline_ns.set(deadline_ns);
        self.armed += 1;
        self.place(entry);
    }

    /// Takes `entry` out if it is still in.
    ///
    /// # Safety
    /// If it is armed, it is armed in this wheel.
    pub(crate) unsafe fn disarm(&mut self, entry: &Entry) {
        if entry.is_armed() {
            self.armed -= 1;
            self.unlink(entry);
        }
    }

    /// The moment to look again: no entry fires before it. Exact unless very many share the earliest slot; `u64::MAX` if none is armed.
    pub(crate) fn next_deadline_ns(&self) -> u64 {
        let Some((level, slot)) = self.earliest() else { return u64::MAX };
        let (mut seen, mut least) = (0, u64::MAX);
        for &chain in &self.slots[level][slot] {
            let mut left = chain;
            // SAFETY: I1 - linked entries are valid.
            while let Some(entry) = unsafe { left.as_ref() } {
                least = least.min(entry.deadline_ns.get());
                left = entry.next.get();
                seen += 1;
                if seen == EXACT_SCAN {
                    // The last slot begins where the clock's numbers end.
                    return self.slot_start(level, slot).saturating_mul(1 << TICK_NS_LOG2);
                }
            }
        }
        least
    }

    /// Hands every entry whose deadline has passed to `fire`, unlinked, earlier ticks first.
    pub(crate) fn advance(&mut self, now_ns: u64, mut fire: impl FnMut(&Entry)) {
        let target = now_ns >> TICK_NS_LOG2;
        self.fetch_heads(target);
        let mut due = Due::new();
        while let Some((level, slot)) = self.earliest() {
            let start = self.slot_start(level, slot);
            if start > target {
                break;
            }
            self.tick = start;
            self.occupied[level].remove(slot);
            let mut chains = std::mem::replace(&mut self.slots[level][slot], [ptr::null(); CHAINS]);
            while chains.iter().any(|left| !left.is_null()) {
                for left in &mut chains {
                    // SAFETY: I1 - linked entries are valid, and stay so until this returns: no owner goes on before.
                    let Some(entry) = (unsafe { left.as_ref() }) else { continue };
                    *left = entry.next.get();
                    prefetch(*left);
                    entry.place.set(NOT_ARMED);
                    if due_tick(entry) <= self.tick {
                        self.armed -= 1;
                        due.push(entry, &mut fire);
                    } else {
                        self.place(entry);
                    }
                }
            }
        }
        due.fire(&mut fire);
        self.tick = self.tick.max(target);
    }

    /// Asks the cache for the first entry of each slot of the lowest level that is due: most have but one, and each is a miss where there are many.
    fn fetch_heads(&self, target: u64) {
        let same_round = target >> DIGIT_BITS == self.tick >> DIGIT_BITS;
        let last = if same_round { target as usize % SLOTS } else { SLOTS - 1 };
        for (word, &bits) in self.occupied[0].0.iter().enumerate() {
            let mut bits = bits;
            while bits != 0 {
                let slot = word * 64 + bits.trailing_zeros() as usize;
                if slot > last {
                    return;
                }
                self.slots[0][slot].iter().filter(|head| !head.is_null()).for_each(|&head| prefetch(head));
                bits &= bits - 1;
            }
        }
    }

    /// Hands every entry to `fire`, unlinked, whenever it is due.
    pub(crate) fn drain(&mut self, mut fire: impl FnMut(&Entry)) {
        while let Some((level, slot)) = self.earliest() {
            // SAFETY: I1 - linked entries are valid.
            let entry = unsafe { &*self.slots[level][slot].into_iter().find(|head| !head.is_null()).expect("its bit is set") };
            self.unlink(entry);
            self.armed -= 1;
            fire(entry);
        }
    }

    fn place(&mut self, entry: *const Entry) {
        // SAFETY: I1 - callers hold a valid entry.
        let entry = unsafe { &*entry };
        let due = due_tick(entry).clamp(self.tick + 1, self.tick + HORIZON);
        let level = ((63 - (due ^ self.tick).leading_zeros()) / DIGIT_BITS) as usize;
        let slot = (due >> (level as u32 * DIGIT_BITS)) as usize % SLOTS;
        let chain = self.chain;
        self.chain = (chain + 1) % CHAINS;
        entry.place.set(((level * SLOTS + slot) * CHAINS + chain) as u16);
        let next = std::mem::replace(&mut self.slots[level][slot][chain], entry);
        self.occupied[level].insert(slot);
        entry.before.set(ptr::null());
        entry.next.set(next);
        // SAFETY: I1 - linked entries are valid.
        if let Some(next) = unsafe { next.as_ref() } {
            next.before.set(entry);
        }
    }

    fn unlink(&mut self, entry: &Entry) {
        let place = entry.place.replace(NOT_ARMED) as usize;
        let (level, slot, chain) = (place / CHAINS / SLOTS, place / CHAINS % SLOTS, place % CHAINS);
        let (next, before) = (entry.next.get(), entry.before.get());
        // SAFETY: I1 - linked entries are valid.
        unsafe {
            if let Some(next) = next.as_ref() {
                next.before.set(before);
            }
            match before.as_ref() {
                Some(before) => before.next.set(next),
                None => self.slots[level][slot][chain] = next,
            }
        }
        if self.slots[level][slot].iter().all(|head| head.is_null()) {
            self.occupied[level].remove(slot);
        }
    }

    /// Level and slot that come first: the lowest level that has any, there the lowest slot (I2).
    fn earliest(&self) -> Option<(usize, usize)> {
        self.occupied.iter().enumerate().find_map(|(level, slots)| Some((level, slots.first()?)))
    }

    fn slot_start(&self, level: usize, slot: usize) -> u64 {
        let span = level as u32 * DIGIT_BITS;
        (self.tick >> (span + DIGIT_BITS) << (span + DIGIT_BITS)) | (slot as u64) << span
    }
}

/// Entries that are out of the wheel and have not fired yet: their owners are asked for together, so that their misses overlap.
struct Due {
    entries: [*const Entry; DUE_MAX],
    len: usize,
}

impl Due {
    fn new() -> Self {
        Self { entries: [ptr::null(); DUE_MAX], len: 0 }
    }

    fn push(&mut self, entry: &Entry, fire: &mut impl FnMut(&Entry)) {
        if self.len == DUE_MAX {
            self.fire(fire);
        }
        prefetch(entry.owner);
        self.entries[self.len] = entry;
        self.len += 1;
    }

    fn fire(&mut self, fire: &mut impl FnMut(&Entry)) {
        // SAFETY: as in `advance`.
        self.entries[..self.len].iter().for_each(|&entry| fire(unsafe { &*entry }));
        self.len = 0;
    }
}

/// The first tick at which the entry's deadline has passed.
fn due_tick(entry: &Entry) -> u64 {
    first_tick(entry.deadline_ns.get())
}

fn first_tick(deadline_ns: u64) -> u64 {
    deadline_ns.div_ceil(1 << TICK_NS_LOG2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A wheel and a plain list, given the same commands, fire the same entries at the same calls.
    #[derive(Clone, Debug)]
    enum Command {
        Arm { after_ns: u64 },
        Disarm { which: usize },
        Advance { by_ns: u64 },
    }

    fn any_span() -> impl Strategy<Value = u64> {
        (0u32..62, any::<u64>()).prop_map(|(bits, x)| x & ((1 << bits) - 1))
    }

    fn any_command() -> impl Strategy<Value = Command> {
        prop_oneof![
            4 => any_span().prop_map(|after_ns| Command::Arm { after_ns }),
            2 => any::<usize>().prop_map(|which| Command::Disarm { which }),
            3 => any_span().prop_map(|x| Command::Advance { by_ns: x >> 8 }),
        ]
    }

    proptest! {
        #[test]
        fn fires_what_a_plain_list_would(start in 0u64..1 << 60, commands in proptest::collection::vec(any_command(), 1..200)) {
            let mut now = start;
            let mut wheel = Wheel::boxed(now);
            let mut armed: Vec<Box<Entry>> = Vec::new();
            for command in commands {
                match command {
                    Command::Arm { after_ns } => {
                        // A deadline within the tick that the wheel stands at is due at the next; the entry carries the tick it is due at.
                        let deadline = now.saturating_add(after_ns);
                        let due = deadline.div_ceil(1 << TICK_NS_LOG2).max(wheel.tick + 1);
                        let entry = Box::new(Entry::new(ptr::without_provenance(due as usize)));
                        // SAFETY: boxed, so it stays in place; disarmed or fired before it is dropped below.
                        unsafe { wheel.arm(&*entry, deadline) };
                        armed.push(entry);
                    }
                    Command::Disarm { which } if !armed.is_empty() => {
                        let entry = armed.swap_remove(which % armed.len());
                        // SAFETY: it was armed in this wheel.
                        unsafe { wheel.disarm(&entry) };
                    }
                    Command::Disarm { .. } => {}
                    Command::Advance { by_ns } => {
                        now = now.saturating_add(by_ns).min(1 << 62);
                        let mut last_tick = 0;
                        wheel.advance(now, |entry| {
                            assert!(entry.deadline_ns.get() <= now, "fired early");
                            let due = entry.owner().addr() as u64;
                            assert!(due >= last_tick, "fired out of order");
                            last_tick = due;
                        });
                        // One tick of grace: deadlines are rounded up to ticks, and a passed one waits for the next tick.
                        for entry in armed.extract_if(.., |e| !e.is_armed()) {
                            assert!(entry.deadline_ns.get() <= now);
                        }
                        for entry in &armed {
                            assert!(entry.deadline_ns.get() + (2 << TICK_NS_LOG2) > now, "overdue entry still armed");
                        }
                    }
                }
                prop_assert_eq!(wheel.armed(), armed.len());
                let earliest = armed.iter().map(|e| e.deadline_ns.get()).min().unwrap_or(u64::MAX);
                prop_assert!(wheel.next_deadline_ns() <= earliest);
                prop_assert!(armed.len() > EXACT_SCAN || armed.is_empty() || wheel.next_deadline_ns() < u64::MAX);
            }
            let (kept, left) = (armed.len() / 2, armed.len() - armed.len() / 2);
            for entry in &armed[kept..] {
                // SAFETY: it was armed in this wheel.
                unsafe { wheel.disarm(entry) };
            }
            prop_assert_eq!(wheel.armed(), armed.len() - left);
            let mut drained = 0;
            wheel.drain(|entry| {
                assert!(!entry.is_armed());
                drained += 1;
            });
            prop_assert_eq!(drained, kept);
            prop_assert_eq!(wheel.armed(), 0);
            prop_assert!(wheel.earliest().is_none());
        }
    }

    #[test]
    fn many_entries_that_never_fire_are_not_looked_at_again() {
        let mut wheel = Wheel::boxed(5_000);
        let entries = [const { Entry::new(ptr::null()) }; EXACT_SCAN + 1];
        // SAFETY: `entries` outlive the wheel's use of them.
        entries.iter().for_each(|entry| unsafe { wheel.arm(entry, u64::MAX) });
        assert_eq!(wheel.next_deadline_ns(), u64::MAX);
    }

    #[test]
    fn the_next_deadline_of_a_lone_entry_is_exact() {
        let mut wheel = Wheel::boxed(5_000);
        let entry = Entry::new(ptr::null());
        // SAFETY: `entry` outlives the wheel's use of it.
        unsafe { wheel.arm(&entry, 3_600_000_000_123) };
        assert_eq!(wheel.next_deadline_ns(), 3_600_000_000_123);
        wheel.advance(3_600_000_000_122, |_| panic!("fired early"));
        let mut fired = false;
        wheel.advance(3_600_000_002_000, |_| fired = true);
        assert!(fired && !entry.is_armed());
    }
}
