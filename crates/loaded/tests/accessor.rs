//! Law R1 in a library that is loaded at run time, optimised as a whole: `cargo test --release -p loaded`.
//!
//! Such a library asks `__tls_get_addr` where its thread-locals are, and the compiler keeps the answer as long as a function lasts: over a switch too, unless `sched::worker::here` is what it is.
//! Fails, with a crash, when that is inlined, with or without its empty assembly (tried with Rust 1.95). Without the assembly but not inlined it passes: today's compiler does not need that half.

use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};

/// Beside this program's folder. `cargo test` builds it if it is not told to build some targets only.
fn library() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let library = program.parent().and_then(Path::parent).unwrap().join("examples/libwanderers.so");
    assert!(library.exists(), "{} is built by `cargo test -p loaded` without --test", library.display());
    library
}

/// Loads `library`, for ever, and finds the function of that name.
fn load(library: &Path, name: &CStr) -> extern "C" fn() {
    let path = CString::new(library.to_str().unwrap()).unwrap();
    // SAFETY: both are C strings; the library has no initialisers of its own.
    let function = unsafe {
        let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
        assert!(!handle.is_null(), "{} cannot be loaded: {:?}", library.display(), CStr::from_ptr(libc::dlerror()));
        libc::dlsym(handle, name.as_ptr())
    };
    assert!(!function.is_null(), "{name:?} is missing in {}", library.display());
    // SAFETY: each function of `examples/wanderers.rs` that has a name has this type.
    unsafe { std::mem::transmute::<*mut libc::c_void, extern "C" fn()>(function) }
}

#[test]
fn after_each_wait_a_fiber_of_a_loaded_library_finds_its_worker() {
    load(&library(), c"wander")();
}
