//! Gives memory that is free back to the system.

/// What a copy of a large state took stays with the allocator, in pieces among what is in use: glibc gives back by itself only
/// what lies at the end. After a snapshot of 100,000 leases that is a gigabyte.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
pub(super) fn give_back_memory() {
    // SAFETY: it is declared as in malloc.h; it takes a number and locks what it looks at.
    unsafe extern "C" {
        safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
    }
    // Whether there was anything to give back changes nothing.
    let _ = malloc_trim(0);
}

/// Other allocators have their own ways.
#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
pub(super) fn give_back_memory() {}
