//! Hands a door to libFuzzer.

use std::env;
use std::ffi::{CString, c_char, c_int};
use std::fs;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

/// The folder that libFuzzer reads and writes; the valid inputs are its seeds. Without it nothing is made up.
const CORPUS_VARIABLE: &str = "COMITY_FUZZ_CORPUS";
/// Its options, and further folders that it reads, with spaces between them.
const OPTIONS_VARIABLE: &str = "COMITY_FUZZ_OPTIONS";

type Open = Box<dyn Fn(&[u8]) -> bool>;

unsafe extern "C" {
    fn LLVMFuzzerRunDriver(
        argc: *mut c_int,
        argv: *mut *mut *mut c_char,
        callback: extern "C" fn(*const u8, usize) -> c_int,
    ) -> c_int;
}

thread_local! {
    /// The door of this process: libFuzzer calls back on the thread that started it.
    static DOOR: OnceLock<Open> = const { OnceLock::new() };
}

extern "C" fn test_one_input(data: *const u8, size: usize) -> c_int {
    let input = if size == 0 {
        &[]
    } else {
        // SAFETY: libFuzzer passes `size` readable bytes, which it leaves alone until this returns.
        unsafe { std::slice::from_raw_parts(data, size) }
    };
    DOOR.with(|door| {
        let open = door.get().expect("set before libFuzzer starts");
        open(input);
    });
    0
}

/// What libFuzzer would need of `fuzz_target!`; the driver gets its callback from here instead.
#[unsafe(no_mangle)]
#[expect(improper_ctypes_definitions, reason = "the caller is Rust")]
extern "C" fn rust_fuzzer_test_input(input: &[u8]) -> c_int {
    test_one_input(input.as_ptr(), input.len())
}

/// Makes up inputs as the environment says, and ends the process; returns if it says nothing.
pub(crate) fn run(valid: Vec<Vec<u8>>, open: impl Fn(&[u8]) -> bool + 'static) {
    let Some(corpus) = env::var_os(CORPUS_VARIABLE).map(PathBuf::from) else { return };
    fs::create_dir_all(&corpus).unwrap_or_else(|error| panic!("{}: {error}", corpus.display()));
    for (number, input) in valid.iter().enumerate() {
        let path = corpus.join(format!("valid-{number}"));
        fs::write(&path, input).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    let options = env::var(OPTIONS_VARIABLE).unwrap_or_default();
    let arguments = [again(), corpus.display().to_string()];
    let mut arguments: Vec<*mut c_char> = arguments
        .iter()
        .map(String::as_str)
        .chain(options.split_whitespace())
        .map(|argument| CString::new(argument).expect("the environment holds no zero bytes").into_raw())
        .collect();
    let mut count = c_int::try_from(arguments.len()).expect("few arguments");
    arguments.push(ptr::null_mut());
    let mut first = arguments.as_mut_ptr();
    DOOR.with(|door| assert!(door.set(Box::new(open)).is_ok(), "one door for each process"));
    // From here on a panic, on any thread, ends the process, and libFuzzer writes the input.
    libfuzzer_sys::initialize(ptr::null(), ptr::null());
    // SAFETY: the arguments are C strings and are never freed; a null pointer ends them.
    let status = unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut first, test_one_input) };
    std::process::exit(status);
}

/// The command with which libFuzzer starts this process again to minimise a corpus: it adds its options at the end, and
/// gives the whole to a shell. They have to come by the variable, as the test's own arguments are not libFuzzer's.
fn again() -> String {
    let command: Vec<String> = env::args().collect();
    format!("sh -c '{OPTIONS_VARIABLE}=\"$*\" exec {}' sh", command.join(" "))
}
