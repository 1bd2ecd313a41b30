//! Fuzzes the doors at which input from elsewhere is parsed. Each door is a test beside the parser: it gives valid
//! inputs, and says whether it accepts an input.
//!
//! ```text
//!   valid inputs ───────────┐
//!                           ├──▶ door(bytes) ─▶ accepted or refused, never a panic
//!   __fuzz__/DOOR/corpus ───┤
//!   libFuzzer ──────────────┘ (scripts/fuzz alone)
//! ```
//!
//! An ordinary test run tries the valid and the kept inputs. `scripts/fuzz` builds everything with counters at each branch
//! (`cfg(fuzzing)`), and libFuzzer edits what reaches new code. It keeps an input that causes a panic, takes too long or
//! too much memory in `__fuzz__/DOOR/corpus` beside the test.

#[cfg(fuzzing)]
mod libfuzzer;

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};

/// A parser, and inputs that it accepts.
#[derive(Debug)]
pub struct Door<F> {
    name: &'static str,
    corpus: PathBuf,
    #[cfg(fuzzing)]
    valid: Vec<Vec<u8>>,
    open: F,
}

impl<F: Fn(&[u8]) -> bool> Door<F> {
    /// A door in the test file `file` of the crate in `crate_folder`; `open` returns whether it accepts an input.
    ///
    /// # Panics
    /// If it refuses one of `valid`: edits of what is refused at the first check would find nothing.
    #[must_use]
    pub fn new(name: &'static str, crate_folder: &str, file: &str, valid: Vec<Vec<u8>>, open: F) -> Self {
        for (number, input) in valid.iter().enumerate() {
            assert!(open(input), "{name} refuses valid input {number}: {:?}", String::from_utf8_lossy(input));
        }
        // Cargo names the file from the folder of the workspace.
        let test = Path::new(crate_folder).ancestors().map(|folder| folder.join(file)).find(|test| test.exists());
        let folder = test.unwrap_or_else(|| file.into()).with_file_name("__fuzz__");
        Self {
            name,
            corpus: folder.join(name).join("corpus"),
            #[cfg(fuzzing)]
            valid,
            open,
        }
    }

    /// Tries the kept inputs. Under `scripts/fuzz` libFuzzer then makes up others, and ends the process.
    ///
    /// # Panics
    /// If the door does.
    pub fn run(self)
    where
        F: 'static,
    {
        self.try_kept();
        #[cfg(fuzzing)]
        libfuzzer::run(self.valid, self.open);
    }

    fn try_kept(&self) {
        let mut kept: Vec<PathBuf> =
            fs::read_dir(&self.corpus).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        kept.sort();
        for path in kept {
            let input = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.open)(&input))) {
                eprintln!("{} panics at the kept input {}", self.name, path.display());
                resume_unwind(panic);
            }
        }
    }
}

/// Fuzzes a door in a test: `fuzz!("name", valid_inputs, |bytes| accepts(bytes))`.
#[macro_export]
macro_rules! fuzz {
    ($name:literal, $valid:expr, $open:expr) => {
        $crate::Door::new($name, env!("CARGO_MANIFEST_DIR"), file!(), $valid, $open).run()
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door<F: Fn(&[u8]) -> bool>(name: &'static str, valid: &[&[u8]], open: F) -> Door<F> {
        let valid = valid.iter().map(|input| input.to_vec()).collect();
        Door::new(name, env!("CARGO_MANIFEST_DIR"), file!(), valid, open)
    }

    #[test]
    fn a_kept_input_that_causes_a_panic_fails_the_test() {
        let folder = std::env::temp_dir().join(format!("comity-fuzz-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let fails_on_seven = |content: &[u8]| {
            fs::write(folder.join("kept"), content).expect("written");
            let mut door = door("seven", &[b"valid"], |bytes: &[u8]| {
                assert!(!bytes.contains(&7), "seven");
                true
            });
            door.corpus.clone_from(&folder);
            catch_unwind(AssertUnwindSafe(|| door.run())).is_err()
        };
        assert!(fails_on_seven(&[1, 7]) && !fails_on_seven(&[1, 8]));
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn the_corpus_is_beside_the_test() {
        let door = door("beside", &[], |_: &[u8]| true);
        assert!(
            door.corpus.ends_with("integration-tests/fuzz/src/__fuzz__/beside/corpus"),
            "{door:?}",
            door = door.corpus
        );
    }

    #[test]
    #[should_panic(expected = "refuses valid input 0")]
    fn a_valid_input_is_accepted() {
        let _ = door("refusing", &[b"x"], |_: &[u8]| false);
    }
}
