//! Files to the container and back.

use std::io::{BufReader, BufWriter};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kube::api::AttachParams;
use tokio::time::{Instant, interval_at};
use tokio_util::io::SyncIoBridge;

use super::exec::{STREAM_BUFFER, beginning};
use super::remote::{RETRY_PAUSE, Remote};
use super::results::{self, Fetched};
use super::scripts::{SEND_RESULTS, WORK};
use super::work_folder::WorkFolder;
use crate::failure::Failure;
use crate::output::note;
use crate::units::{counted, format_bytes};

/// Interval of progress on long transfers.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);
/// Attempts to fetch the results: files stay until the container ends.
const FETCH_ATTEMPTS: u32 = 3;
/// Most text of errors that is kept.
const MAX_ERRORS: u64 = 64 << 10;
/// Exit code of shells for a program that is missing.
const NOT_FOUND: i32 = 127;

/// Sends the folder to the container.
///
/// # Errors
/// [`Failure`] if a file cannot be read, the connection breaks, or the image has no tar.
pub(super) async fn upload(remote: &Remote, folder: WorkFolder) -> Result<(), Failure> {
    for link in &folder.left_out {
        note(&format!("warning: {} leads out of the folder and is not sent", link.display()));
    }
    if folder.files == 0 {
        note("no file to send: the folder is empty, or all of it is ignored");
        return Ok(());
    }
    let (files, all) = (counted(folder.files as u64, "file", "files"), format_bytes(folder.bytes));
    note(&format!("sending {files}, {all}"));
    let parameters = AttachParams::default().stdin(true).stdout(false).stderr(true);
    let mut exec = remote.exec(&["tar", "-xf", "-", "-C", WORK], parameters).await?;
    let stream = exec.stdin.take().ok_or_else(|| Failure::unavailable("the command has no input"))?;
    let errors = tokio::spawn(beginning(exec.stderr.take(), MAX_ERRORS));
    let sent = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&sent);
    let mut writing = tokio::task::spawn_blocking(move || {
        let mut stream = BufWriter::with_capacity(STREAM_BUFFER, SyncIoBridge::new(stream));
        folder.write(&mut stream, &counter)?;
        // Ends tar's input.
        stream.get_mut().shutdown()
    });
    let mut progress = interval_at(Instant::now() + REPORT_INTERVAL, REPORT_INTERVAL);
    let written = loop {
        tokio::select! {
            written = &mut writing => break written.map_err(|error| Failure::unavailable(error.to_string()))?,
            _ = progress.tick() => note(&format!("sent {} of {all}", format_bytes(sent.load(Ordering::Relaxed)))),
        }
    };
    let needs_tar = "the image needs tar; --no-upload sends no files";
    // tar that ended breaks the stream, and says why. After any other error it waits for more input.
    let is_broken = written.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if let (false, Err(error)) = (is_broken, &written) {
        let failure = Failure::refused("upload-failed", format!("the folder was not sent: {error}"));
        return Err(failure.remedy("run it again"));
    }
    match (exec.code().await.map_err(|failure| failure.remedy(needs_tar))?, written) {
        (0, Ok(())) => Ok(()),
        (code, _) => {
            let errors = errors.await.unwrap_or_default();
            let why = errors.lines().next().unwrap_or_default();
            let reason = format!("tar in the container ended with {code}: {why}");
            Err(Failure::refused("upload-failed", reason).remedy(needs_tar))
        }
    }
}

/// Fetches what changed in the container to `folder`, at most `most` bytes.
///
/// # Errors
/// [`Failure`] if the connection breaks again and again, a file cannot be written, or there is more.
pub(super) async fn fetch(remote: &Remote, folder: &Path, most: u64) -> Result<(), Failure> {
    let mut attempt = 1;
    let fetched = loop {
        match try_to_fetch(remote, folder, most).await {
            Err(failure) if failure.is_passing() && attempt < FETCH_ATTEMPTS => attempt += 1,
            done => break done?,
        }
        tokio::time::sleep(RETRY_PAUSE).await;
    };
    for refused in &fetched.refused {
        note(&format!("warning: not fetched: {refused}"));
    }
    if fetched.more_refused > 0 {
        note(&format!("warning: not fetched: {} more", fetched.more_refused));
    }
    if fetched.files > 0 {
        let files = counted(fetched.files, "file", "files");
        note(&format!("{files}, {}, fetched to {}", format_bytes(fetched.bytes), folder.display()));
    }
    Ok(())
}

async fn try_to_fetch(remote: &Remote, folder: &Path, most: u64) -> Result<Fetched, Failure> {
    let parameters = AttachParams::default().stdout(true).stderr(true).stdin(false);
    let mut exec = remote.exec(&["/bin/sh", "-c", SEND_RESULTS], parameters).await?;
    let stream = exec.stdout.take().ok_or_else(|| Failure::unavailable("the command has no output"))?;
    let errors = tokio::spawn(beginning(exec.stderr.take(), MAX_ERRORS));
    let to = folder.to_owned();
    let unpacked = tokio::task::spawn_blocking(move || {
        let stream = BufReader::with_capacity(STREAM_BUFFER, SyncIoBridge::new(stream));
        results::unpack(stream, &to, most)
    });
    let unpacked = unpacked.await.map_err(|error| Failure::unavailable(error.to_string()))?;
    // A stream that broke ends early, which the archive does not always show.
    match (unpacked, exec.code().await) {
        (_, Err(failure)) => Err(failure),
        (Err(error), Ok(_)) => {
            Err(Failure::refused("results-failed", format!("the results were not fetched: {error}")))
        }
        (Ok(fetched), Ok(0)) => Ok(fetched),
        (Ok(fetched), Ok(code)) => {
            let errors = errors.await.unwrap_or_default();
            let why = errors.lines().next().unwrap_or_default();
            let remedy = if code == NOT_FOUND { "; the image needs find and tar" } else { "" };
            note(&format!("warning: not all results were fetched: {why}{remedy}"));
            Ok(fetched)
        }
    }
}
