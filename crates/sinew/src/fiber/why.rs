//! What a fiber waits for, in one word, for those who ask why nothing goes on.
//!
//! Written by the fiber before it begins to wait, and not cleared after: it means something while the state word says WAITING. A relaxed store on a line
//! that the wait writes anyway.

use super::Control;

const KIND_SHIFT: u32 = 26;
const PLACE: u32 = (1 << KIND_SHIFT) - 1;

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    Park,
    Sleep,
    /// The end of the fiber at this place.
    Join(u32),
    /// The fibers of its scope.
    Scope,
    /// The end of another runtime.
    Shutdown,
    /// Its turn at an object.
    At(At),
}

/// What kind of object a wait is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Mutex,
    RwLockRead,
    RwLockWrite,
    Condvar,
    Semaphore,
    Barrier,
    Latch,
    WaitGroup,
    Once,
    Event,
    Futex,
    Send,
    Receive,
    Select,
    Watch,
    Future,
    Blocking,
    Timer,
    Readable,
    Writable,
    Accept,
    Connect,
    File,
}

impl At {
    const ALL: [At; 23] = [
        At::Mutex,
        At::RwLockRead,
        At::RwLockWrite,
        At::Condvar,
        At::Semaphore,
        At::Barrier,
        At::Latch,
        At::WaitGroup,
        At::Once,
        At::Event,
        At::Futex,
        At::Send,
        At::Receive,
        At::Select,
        At::Watch,
        At::Future,
        At::Blocking,
        At::Timer,
        At::Readable,
        At::Writable,
        At::Accept,
        At::Connect,
        At::File,
    ];

    /// `waits ...`
    pub(crate) fn text(self) -> &'static str {
        match self {
            At::Mutex => "for a Mutex",
            At::RwLockRead => "to read a RwLock",
            At::RwLockWrite => "to write a RwLock",
            At::Condvar => "at a Condvar",
            At::Semaphore => "for a permit of a Semaphore",
            At::Barrier => "at a Barrier",
            At::Latch => "for a Latch to open",
            At::WaitGroup => "for a WaitGroup",
            At::Once => "for another to end an initialisation (Once, OnceLock, LazyLock)",
            At::Event => "for an Event to be set",
            At::Futex => "at a Futex",
            At::Send => "to send: the channel is full, or nobody receives",
            At::Receive => "to receive from a channel",
            At::Select => "in select!",
            At::Watch => "for a watched value to change",
            At::Future => "for a future, which has not had it woken",
            At::Blocking => "for its blocking job to end",
            At::Timer => "for the next timer to be due",
            At::Readable => "to read: nothing has come",
            At::Writable => "to write: the other side does not read",
            At::Accept => "to accept: nobody connects",
            At::Connect => "to connect: the other side has not answered",
            At::File => "for the kernel to end a file operation",
        }
    }
}

impl Why {
    pub(crate) fn join(fiber: &Control) -> Self {
        Why::Join(fiber.place())
    }

    pub(crate) fn pack(self) -> u32 {
        match self {
            Why::Park => 0,
            Why::Sleep => 1 << KIND_SHIFT,
            Why::Join(place) => 2 << KIND_SHIFT | place,
            Why::Scope => 3 << KIND_SHIFT,
            Why::Shutdown => 4 << KIND_SHIFT,
            Why::At(at) => 5 << KIND_SHIFT | at as u32,
        }
    }

    pub(crate) fn unpack(word: u32) -> Self {
        match word >> KIND_SHIFT {
            0 => Why::Park,
            1 => Why::Sleep,
            2 => Why::Join(word & PLACE),
            3 => Why::Scope,
            4 => Why::Shutdown,
            _ => Why::At(At::ALL[(word & PLACE) as usize]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_object_is_unpacked_as_it_was_packed() {
        for at in At::ALL {
            assert_eq!(Why::unpack(Why::At(at).pack()), Why::At(at));
        }
    }
}
