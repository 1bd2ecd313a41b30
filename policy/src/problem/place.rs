//! Positions in the source files of a bundle.

/// A range of characters on one line of a file of the bundle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the file in the bundle.
    pub(crate) file: usize,
    /// Line, from 1.
    pub(crate) line: u32,
    /// Column in characters, from 1.
    pub(crate) column: u32,
    /// Characters to underline.
    pub(crate) width: u32,
}

/// Narrows a line, column or width. Nothing is lost: a file has at most 1 MiB.
pub(crate) fn to_u32(value: usize) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}
