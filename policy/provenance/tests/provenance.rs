//! Histories made with the real `git` and `ssh-keygen`, and what is judged about them.

#![expect(clippy::unwrap_used, reason = "tests")]

#[path = "provenance/accepted.rs"]
mod accepted;
#[path = "provenance/attempts.rs"]
mod attempts;
#[path = "provenance/objects.rs"]
mod objects;
#[path = "provenance/repository.rs"]
mod repository;
