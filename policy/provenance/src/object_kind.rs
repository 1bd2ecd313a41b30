//! The kinds of Git objects.

/// The kind of a Git object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectKind {
    /// A commit.
    Commit,
    /// A folder.
    Tree,
    /// A file.
    Blob,
    /// An annotated tag.
    Tag,
}

impl ObjectKind {
    /// The kind as Git writes it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Commit => "commit",
            Self::Tree => "tree",
            Self::Blob => "blob",
            Self::Tag => "tag",
        }
    }
}
