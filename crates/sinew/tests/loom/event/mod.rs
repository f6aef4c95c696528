#[path = "../../../src/event/roam.rs"]
pub mod roam;

mod model;

/// Stands in for the kernel's part, which the models leave out: none of them opens an instance.
pub mod epoll {
    use std::io;
    use std::os::fd::RawFd;

    use crate::base::list::List;
    use crate::fiber::Control;

    pub struct Alarm;

    impl Alarm {
        pub fn new(_epoll: RawFd) -> io::Result<Self> {
            Ok(Self)
        }

        pub fn set(&self, _at_ns: u64) {}
    }

    pub fn look_once<const MOST: usize>(_epoll: RawFd, _instance: u64, _woken: &List<Control>) -> bool {
        false
    }
}

pub mod instance {
    use std::io;
    use std::os::fd::RawFd;

    pub struct Instance;

    impl Instance {
        pub fn open() -> io::Result<Self> {
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
