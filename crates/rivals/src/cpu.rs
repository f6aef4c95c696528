//! On which CPUs this process may run.

/// The CPUs that are ours, in order.
pub(crate) fn allowed() -> Vec<usize> {
    // SAFETY: the set is plain data that lives through the call, which writes to it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), 0, "a process may know its CPUs");
        set
    };
    // SAFETY: every index is below the size of the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Keeps this thread, and those that it starts from now on, on one CPU.
///
/// # Panics
/// If the kernel refuses.
pub(crate) fn stay_on(cpu: usize) {
    // SAFETY: the set is plain data that lives through the call.
    let failed = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &set)
    };
    assert_eq!(failed, 0, "this process cannot be kept on CPU {cpu}");
}

/// The CPU on which we are.
pub(crate) fn current() -> usize {
    // SAFETY: the call takes nothing and fails on no kernel that has it.
    unsafe { libc::sched_getcpu() as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_kept_is_where_it_was_put() {
        let ours = allowed();
        let (&last, others) = ours.split_last().expect("this thread runs somewhere");
        std::thread::spawn(move || {
            stay_on(last);
            assert_eq!((allowed(), current()), (vec![last], last));
        })
        .join()
        .unwrap();
        assert_eq!(allowed().len(), others.len() + 1, "only that thread was kept");
    }
}
