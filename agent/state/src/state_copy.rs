//! A copy of the whole state outside its directory, so that another process can continue with it.
//!
//! The copy holds the records and the small files of the state directory: keys, certificate, brokers. The store writes
//! it before it publishes a change, so a successor knows everything that this process acted on.

#[cfg(test)]
pub(crate) mod fuzz_image;
mod state_files;
mod state_image;

pub use state_files::SIGNED_POLICY_FILE;
pub(crate) use state_files::StateFiles;
pub(crate) use state_image::StateImage;

/// Largest image, compressed: what a Secret holds, less its other fields.
pub const MAX_IMAGE_BYTES: usize = 1_000_000;

/// Why the copy was not written.
#[derive(Debug, thiserror::Error)]
pub enum StateCopyError {
    /// Another process writes it now: this one must stop.
    #[error("{place} was written by another process, which is the active one now")]
    Replaced {
        /// Where the copy is.
        place: String,
    },
    /// It does not fit.
    #[error(
        "the state has {bytes} bytes, and {place} holds {MAX_IMAGE_BYTES}; end leases or peerings, or run one agent \
         with a volume for its state, without the section standby"
    )]
    TooLarge {
        /// Where the copy is.
        place: String,
        /// Its size.
        bytes: usize,
    },
    /// The call failed.
    #[error("cannot write {place}: {reason}")]
    Failed {
        /// Where the copy is.
        place: String,
        /// The error.
        reason: String,
    },
}

/// Keeps the newest image.
pub trait StateCopy: Send + Sync {
    /// Replaces the image; returns once it is durable. Blocks.
    ///
    /// # Errors
    /// [`StateCopyError`]; the old image may have been replaced all the same.
    fn put(&self, image: &[u8]) -> Result<(), StateCopyError>;
}
