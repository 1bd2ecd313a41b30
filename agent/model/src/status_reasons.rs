//! Why a call to a broker failed.

/// The message of a status with the causes behind it.
#[must_use]
pub fn reasons(status: &tonic::Status) -> String {
    let mut text = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}
