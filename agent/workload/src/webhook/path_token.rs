//! The token in the paths of reviews.

use comity_agent_kubernetes::https_server::Certificates;
use sha2::{Digest as _, Sha256};

use super::Review;

/// The path of a review. Its token follows from the server's key, so it changes with the certificate and needs no
/// storage, and tells nothing about the key.
pub(super) fn path_of(review: &dyn Review, certificates: &Certificates) -> String {
    let mut hash = Sha256::new_with_prefix(b"comity webhook path\0");
    hash.update(review.path());
    hash.update(b"\0");
    hash.update(certificates.key_pem.expose());
    format!("{}/{}", review.path(), hex::encode(hash.finalize()))
}
