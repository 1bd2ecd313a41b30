//! Memory settings of the process.

/// Disables [transparent huge pages](https://docs.kernel.org/admin-guide/mm/transhuge.html) for this process and its
/// children (`PR_SET_THP_DISABLE`), whatever the allocator hints. With many small allocations, the kernel would
/// otherwise clear 2 MiB where a few KiB are used. Does nothing on systems without the setting.
pub fn use_small_pages() {
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}
