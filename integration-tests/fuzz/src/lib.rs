//! Fuzzes the doors at which input from elsewhere is parsed. Each door is a test beside the parser: it gives valid
//! inputs, and this crate tries kept inputs, random bytes, and random edits of what the door accepts.
//!
//! ```text
//!   valid inputs ──▶ pool ──edited──┐
//!                     ▲             ├──▶ door(bytes) ─▶ accepted or refused, never a panic
//!                     └──accepted───┤
//!   random bytes ───────────────────┤
//!   __fuzz__/NAME/corpus ───────────┘
//! ```
//!
//! An ordinary test run tries the valid and the kept inputs. `scripts/fuzz` says for how long others are made up. An input
//! that causes a panic is kept in `__fuzz__/NAME/corpus` beside the test. This crate has no dependencies: bolero, which has
//! the same form, would hold back libraries that the programs link.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash as _, Hasher as _};
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Seconds for which inputs are made up; none if it is not set.
pub const SECONDS_VARIABLE: &str = "COMITY_FUZZ_SECONDS";
/// Repeats the inputs of an earlier run.
pub const SEED_VARIABLE: &str = "COMITY_FUZZ_SEED";

/// Edits of one input, at most.
const MAX_EDITS: usize = 8;
/// Bytes of an edit: what it does, where (two bytes), and a value.
const EDIT_BYTES: usize = 4;
/// Bytes of a random input, at most.
const MAX_RANDOM_BYTES: u64 = 512;
/// Accepted inputs that are edited further.
const MAX_POOL: usize = 256;
/// Values at which numbers and lengths change their meaning.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'\n', b'"'];

/// A parser, and inputs that it accepts.
#[derive(Debug)]
pub struct Door<F> {
    name: &'static str,
    corpus: PathBuf,
    pool: Vec<Vec<u8>>,
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
        Self { name, corpus: folder.join(name).join("corpus"), pool: valid, open }
    }

    /// Tries the kept inputs, and makes up others for as long as the environment says.
    ///
    /// # Panics
    /// If the door does; the input is kept.
    pub fn run(self) {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        self.try_kept();
        if let Some(seconds) = number(SECONDS_VARIABLE) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_nanos() as u64);
            self.make_up(Duration::from_secs(seconds), number(SEED_VARIABLE).unwrap_or(now));
        }
    }

    fn try_kept(&self) {
        let mut kept: Vec<PathBuf> =
            fs::read_dir(&self.corpus).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        kept.sort();
        for path in kept {
            let input = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (self.open)(&input))) {
                note(&format!("{} panics at the kept input {}", self.name, path.display()));
                resume_unwind(panic);
            }
        }
    }

    fn make_up(mut self, time: Duration, seed: u64) {
        let (began, mut random, mut tried, mut accepted) = (Instant::now(), Random(seed | 1), 0_u64, 0_u64);
        let valid = self.pool.len();
        while began.elapsed() < time {
            let script = random.bytes();
            let edited = edited(&self.pool, &script);
            for input in [Some(script), edited].into_iter().flatten() {
                let result = catch_unwind(AssertUnwindSafe(|| (self.open)(&input)));
                let is_accepted = result.unwrap_or_else(|panic| {
                    note(&format!("{}: a panic; the input is kept in {}", self.name, self.keep(&input).display()));
                    resume_unwind(panic)
                });
                tried += 1;
                if is_accepted {
                    accepted += 1;
                    // The first ones stay, so that the pool does not drift away from what is written in practice.
                    if self.pool.len() < MAX_POOL {
                        self.pool.push(input);
                    } else {
                        let place = valid + random.next() as usize % (MAX_POOL - valid).max(1);
                        if let Some(old) = self.pool.get_mut(place) {
                            *old = input;
                        }
                    }
                }
            }
        }
        note(&format!("{}: {tried} inputs, {accepted} accepted; {SEED_VARIABLE}={seed} repeats them", self.name));
    }

    /// Writes an input to the corpus.
    fn keep(&self, input: &[u8]) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        input.hash(&mut hasher);
        let path = self.corpus.join(format!("{:016x}", hasher.finish()));
        fs::create_dir_all(&self.corpus)
            .and_then(|()| fs::write(&path, input))
            .unwrap_or_else(|error| note(&format!("{}: {error}: {input:?}", path.display())));
        path
    }
}

/// Fuzzes a door in a test: `fuzz!("name", valid_inputs, |bytes| accepts(bytes))`.
#[macro_export]
macro_rules! fuzz {
    ($name:literal, $valid:expr, $open:expr) => {
        $crate::Door::new($name, env!("CARGO_MANIFEST_DIR"), file!(), $valid, $open).run()
    };
}

fn note(text: &str) {
    // If standard error is closed, nobody reads it.
    let _ = writeln!(std::io::stderr(), "{text}");
}

/// Marsaglia's xorshift64*: fast, and no more random than needed here.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Bytes of a random length; short ones as often as long ones.
    fn bytes(&mut self) -> Vec<u8> {
        let limit = 1 << (self.next() >> 32).rem_euclid(10);
        let length = (self.next() >> 32) % u64::min(limit, MAX_RANDOM_BYTES) + 1;
        (0..length).map(|_| (self.next() >> 56) as u8).collect()
    }
}

/// One of the valid inputs, edited as `script` says; `None` if it says nothing.
fn edited(valid: &[Vec<u8>], script: &[u8]) -> Option<Vec<u8>> {
    let (pick, edits) = script.split_first()?;
    let mut bytes = valid.get(usize::from(*pick) % valid.len().max(1))?.clone();
    for edit in edits.chunks_exact(EDIT_BYTES).take(MAX_EDITS) {
        let [action, high, low, value] = *edit else { break };
        let place = (usize::from(u16::from_be_bytes([high, low])) * (bytes.len() + 1)) >> 16;
        let until = (place + 1 + usize::from(value)).min(bytes.len());
        match action % 8 {
            0 => bytes.get_mut(place).into_iter().for_each(|byte| *byte ^= 1 << (value % 8)),
            1 => bytes.get_mut(place).into_iter().for_each(|byte| *byte = value),
            2 => bytes.get_mut(place).into_iter().for_each(|byte| *byte = EDGES[usize::from(value % 8)]),
            3 => bytes.insert(place, value),
            4 => drop(bytes.drain(place..until)),
            5 => {
                let copied = bytes[place..until].to_vec();
                bytes.splice(place..place, copied);
            }
            6 => bytes.truncate(place),
            _ => {
                let other = &valid[usize::from(value) % valid.len()];
                let tail = other.get(place.min(other.len())..).unwrap_or_default();
                bytes.truncate(place);
                bytes.extend_from_slice(tail);
            }
        }
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    fn door<F: Fn(&[u8]) -> bool>(name: &'static str, valid: &[&[u8]], open: F) -> Door<F> {
        let valid = valid.iter().map(|input| input.to_vec()).collect();
        Door::new(name, env!("CARGO_MANIFEST_DIR"), file!(), valid, open)
    }

    #[test]
    fn a_script_edits_one_valid_input() {
        let valid = [b"first".to_vec(), b"second".to_vec()];
        let edit = |script: &[u8]| edited(&valid, script).map(|bytes| String::from_utf8(bytes).expect("text"));
        assert_eq!(edit(&[]), None);
        assert_eq!(edit(&[3]).as_deref(), Some("second"));
        assert_eq!(edit(&[0, 1, 0, 0, b'F']).as_deref(), Some("First"));
        assert_eq!(edit(&[0, 3, 0xff, 0xff, b'!', 6, 0x80, 0, 0]).as_deref(), Some("fir"));
        assert_eq!(edit(&[0, 4, 0, 0, 1, 5, 0, 0, 0]).as_deref(), Some("rrst"));
        assert_eq!(edit(&[0, 7, 0x80, 0, 1]).as_deref(), Some("firond"));
        assert_eq!(edited(&[], &[1, 2, 3]), None);
        // No script leaves the input.
        for action in 0..=u8::MAX {
            for place in [[0, 0], [0x7f, 0xff], [0xff, 0xff]] {
                assert!(edited(&valid, &[1, action, place[0], place[1], 0xff]).is_some());
            }
        }
    }

    #[test]
    fn made_up_inputs_reach_behind_the_first_check_and_a_seed_repeats_them() {
        let seen = |seed| {
            let seen = RefCell::new(Vec::new());
            let open = |bytes: &[u8]| {
                seen.borrow_mut().push(bytes.to_vec());
                assert!(seen.borrow().len() < 5_000, "enough");
                bytes.starts_with(b"magic")
            };
            let ended = catch_unwind(AssertUnwindSafe(|| {
                let mut door = door("magic", &[b"magic: text"], open);
                door.corpus = std::env::temp_dir().join("comity-fuzz-magic");
                door.make_up(Duration::from_secs(60), seed);
            }));
            assert!(ended.is_err(), "it ends by its count");
            seen.into_inner()
        };
        let first = seen(1);
        let behind = first.iter().filter(|input| input.starts_with(b"magic")).count();
        assert!(behind > 1_000, "only {behind} of 5,000 inputs passed the first check");
        assert!(first == seen(1) && first != seen(2));
    }

    #[test]
    fn an_input_that_causes_a_panic_is_kept_and_tried_again() {
        let folder = std::env::temp_dir().join(format!("comity-fuzz-{}", std::process::id()));
        let open = |bytes: &[u8]| {
            assert!(!bytes.contains(&7), "seven");
            true
        };
        let mut first = door("seven", &[b"valid"], open);
        first.corpus = folder.join("corpus");
        assert!(catch_unwind(AssertUnwindSafe(|| first.make_up(Duration::from_secs(60), 1))).is_err());
        let kept: Vec<_> = fs::read_dir(folder.join("corpus")).expect("a corpus").flatten().collect();
        assert!(kept.len() == 1 && fs::read(kept[0].path()).expect("kept").contains(&7), "{kept:?}");
        let mut second = door("seven", &[b"valid"], open);
        second.corpus = folder.join("corpus");
        assert!(catch_unwind(AssertUnwindSafe(|| second.try_kept())).is_err(), "the kept input was not tried");
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
