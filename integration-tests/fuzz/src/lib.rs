//! Fuzzes the doors at which input from elsewhere is parsed. Each door is a test beside the parser: it gives valid
//! inputs, and this crate tries kept inputs, random bytes, and random edits of the valid ones.
//!
//! ```text
//!   valid inputs ──edited──┐
//!   random bytes ──────────┼─▶ door(bytes) ─▶ accepted or refused, never a panic
//!   __fuzz__/NAME/corpus ──┘
//! ```
//!
//! An ordinary test run tries the valid and the kept inputs; `scripts/fuzz` sets how long bolero makes up others. An input
//! that once caused a panic is kept in `__fuzz__/NAME/corpus` beside the test.

use std::panic::RefUnwindSafe;

pub use bolero;

/// Edits of one input, at most.
const MAX_EDITS: usize = 8;
/// Bytes that an edit takes from the random input: what it does, where (two bytes), and a value.
const EDIT_BYTES: usize = 4;
/// Values at which numbers and lengths change their meaning.
const EDGES: [u8; 8] = [0, 1, 0x7f, 0x80, 0xfe, 0xff, b'\n', b'"'];

/// A parser and inputs that it accepts.
#[derive(Debug)]
pub struct Door<F> {
    valid: Vec<Vec<u8>>,
    open: F,
}

// A panic ends the test: nobody sees what it left half done.
impl<F> RefUnwindSafe for Door<F> {}

impl<F: Fn(&[u8]) -> bool> Door<F> {
    /// A door; `open` returns whether it accepts an input.
    ///
    /// # Panics
    /// If it refuses one of `valid`: edits of what is refused at the first check would find nothing.
    #[must_use]
    pub fn new(valid: Vec<Vec<u8>>, open: F) -> Self {
        for (number, input) in valid.iter().enumerate() {
            assert!(open(input), "the door refuses valid input {number}: {:?}", String::from_utf8_lossy(input));
        }
        Self { valid, open }
    }

    /// Tries an input as it is, and as edits of a valid one.
    pub fn take(&self, input: &[u8]) {
        (self.open)(input);
        if let Some(edited) = edited(&self.valid, input) {
            (self.open)(&edited);
        }
    }
}

/// Fuzzes a door in a test: `fuzz!("name", valid_inputs, |bytes| accepts(bytes))`.
#[macro_export]
macro_rules! fuzz {
    ($name:literal, $valid:expr, $open:expr) => {{
        let door = $crate::Door::new($valid, $open);
        // None unless the environment asks for some: see scripts/fuzz.
        $crate::bolero::check!(name = $name).with_iterations(0).for_each(move |input: &[u8]| door.take(input));
    }};
}

/// One of the valid inputs, edited as `script` says; `None` if it says nothing.
fn edited(valid: &[Vec<u8>], script: &[u8]) -> Option<Vec<u8>> {
    let (pick, edits) = script.split_first()?;
    let mut bytes = valid.get(usize::from(*pick) % valid.len().max(1))?.clone();
    for edit in edits.chunks_exact(EDIT_BYTES).take(MAX_EDITS) {
        let [action, high, low, value] = *edit else { break };
        let place = usize::from(u16::from_be_bytes([high, low])) * (bytes.len() + 1) >> 16;
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

    #[test]
    fn a_script_edits_one_valid_input() {
        let valid = [b"first".to_vec(), b"second".to_vec()];
        let edit = |script: &[u8]| edited(&valid, script).map(|bytes| String::from_utf8(bytes).expect("text"));
        assert_eq!(edit(&[]), None);
        assert_eq!(edit(&[3]).as_deref(), Some("second"));
        assert_eq!(edit(&[0, 1, 0, 0, b'F']).as_deref(), Some("First"));
        assert_eq!(edit(&[0, 3, 0xff, 0xff, b'!', 6, 0x80, 0, 0]).as_deref(), Some("fir"));
        assert_eq!(edit(&[0, 4, 0, 0, 1, 5, 0, 0, 0]).as_deref(), Some("rrst"));
        assert_eq!(edit(&[0, 7, 0x80, 0, 1]).as_deref(), Some("ficond"));
        assert_eq!(edited(&[], &[1, 2, 3]), None);
        // No script leaves the input.
        for action in 0..=u8::MAX {
            for place in [[0, 0], [0x7f, 0xff], [0xff, 0xff]] {
                assert!(edited(&valid, &[1, action, place[0], place[1], 0xff]).is_some());
            }
        }
    }

    #[test]
    fn a_door_gets_valid_kept_and_made_up_inputs() {
        let seen = RefCell::new(Vec::new());
        let door = Door::new(vec![b"valid".to_vec()], |bytes: &[u8]| {
            seen.borrow_mut().push(bytes.to_vec());
            true
        });
        door.take(&[0, 1, 0, 0, b'V']);
        assert_eq!(*seen.borrow(), [b"valid".to_vec(), vec![0, 1, 0, 0, b'V'], b"Valid".to_vec()]);
    }

    #[test]
    fn kept_inputs_are_tried() {
        let kept = std::panic::catch_unwind(|| {
            fuzz!("kept", vec![b"fine".to_vec()], |bytes: &[u8]| {
                assert!(bytes != b"kept\n", "it was tried");
                true
            });
        });
        assert!(kept.is_err(), "src/__fuzz__/kept/corpus/one holds what this door panics at");
    }

    #[test]
    #[should_panic(expected = "the door refuses valid input 0")]
    fn a_valid_input_is_accepted() {
        let _ = Door::new(vec![b"x".to_vec()], |_: &[u8]| false);
    }
}
