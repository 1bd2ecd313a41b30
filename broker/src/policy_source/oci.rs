//! The policy as an OCI artifact: commits in a Git bundle, or a folder in a tar archive.
//!
//! ```text
//!   tag or digest ─▶ manifest ─▶ cosign: is it signed by a key of the brokers?
//!                       │
//!                       └─▶ its one layer ─┬─▶ git_bundle ─▶ pack in DATA/policy-source ─▶ judged like every commit
//!                                          └─▶ unpacked   ─▶ documents, where no signatures are required
//! ```
//!
//! The calls are few and simple, and every answer has a bound: the client crates of OCI read manifests, tokens and errors
//! without one, follow redirects to anywhere, and bring in a second HTTP client.

mod address;
mod artifact;
mod cosign;
mod git_bundle;
mod manifest;
mod push;
mod registry;
mod registry_login;
mod token_challenge;
mod unpacked;

pub(crate) use address::{ArtifactAddress, ArtifactDigest};
pub(super) use artifact::pull_artifact;
pub use push::{ArtifactPush, PushedArtifact};
pub(super) use unpacked::unpacked;
