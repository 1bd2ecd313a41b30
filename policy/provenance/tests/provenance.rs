//! Histories made with the real `git` and `ssh-keygen`, and what is judged about them.

#[path = "provenance/accepted.rs"]
mod accepted;
#[path = "provenance/attempts.rs"]
mod attempts;
#[path = "provenance/repository.rs"]
mod repository;
