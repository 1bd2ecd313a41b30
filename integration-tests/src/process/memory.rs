//! Searches files and process memory for secrets that must not be there.

use std::fmt;
use std::fs::File;
use std::io::Read as _;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// Bytes of memory that are read at once.
const CHUNK: usize = 4 << 20;
/// Bytes per page in a page map.
const ENTRY_BYTES: usize = 8;

/// One occurrence of a secret.
#[derive(Debug)]
pub struct Finding {
    /// File or memory region.
    pub place: String,
    /// The encoding that was found.
    pub form: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.form, self.place)
    }
}

/// Encodings of a secret to search for: raw, hex, and base64 at each of its three alignments.
fn forms(secret: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut forms = vec![("raw bytes", secret.to_vec()), ("hex", hex::encode(secret).into_bytes())];
    for shift in 0..3 {
        // Preceding bytes shift the base64 text; characters that depend on neighbouring bytes are cut off at both ends.
        let mut padded = vec![0; shift];
        padded.extend_from_slice(secret);
        for (name, engine) in [("base64", &STANDARD_NO_PAD), ("base64url", &URL_SAFE_NO_PAD)] {
            let text = engine.encode(&padded).into_bytes();
            let (start, end) = (if shift == 0 { 0 } else { shift + 1 }, text.len().saturating_sub(2));
            forms.push((name, text[start..end].to_vec()));
        }
    }
    forms
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && memchr::memmem::find(haystack, needle).is_some()
}

/// The decompressed first zstd frame of `content`, as in snapshots.
fn unpacked(content: &[u8]) -> Option<Vec<u8>> {
    const MAGIC: [u8; 4] = 0xFD2F_B528_u32.to_le_bytes();
    let start = memchr::memmem::find(content, &MAGIC)?;
    let mut unpacked = Vec::new();
    let decoder = zstd::stream::read::Decoder::new(&content[start..]).ok()?;
    decoder.single_frame().take(1 << 30).read_to_end(&mut unpacked).ok()?;
    Some(unpacked)
}

/// Searches all files under `folder`, including zstd data in them.
pub fn search_files(folder: &Path, secret: &[u8]) -> Result<Vec<Finding>> {
    let forms = forms(secret);
    let mut findings = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("read {}", folder.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                let content = std::fs::read(entry.path())?;
                let packed = unpacked(&content).unwrap_or_default();
                for (form, needle) in &forms {
                    if contains(&content, needle) || contains(&packed, needle) {
                        findings.push(Finding { place: entry.path().display().to_string(), form });
                    }
                }
            }
        }
    }
    Ok(findings)
}

/// Searches all memory that a process has in use, in RAM or swapped out. Needs permission to trace it.
pub fn search_memory(pid: u32, secret: &[u8]) -> Result<Vec<Finding>> {
    let forms = forms(secret);
    let overlap = forms.iter().map(|(_, needle)| needle.len()).max().unwrap_or(0);
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).context("list the memory of the process")?;
    let memory = File::open(format!("/proc/{pid}/mem")).context("open the memory of the process")?;
    let pages = File::open(format!("/proc/{pid}/pagemap")).context("open the page map of the process")?;
    let mut buffer = vec![0; CHUNK + overlap];
    let mut findings = Vec::new();
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
        let name = words.nth(3).unwrap_or("anonymous");
        if !rights.starts_with('r') || name.starts_with("[v") {
            continue;
        }
        let Some((start, end)) = range.split_once('-') else { continue };
        let region = u64::from_str_radix(start, 16)?..u64::from_str_radix(end, 16)?;
        for used in used_ranges(&pages, region).context("read the page map of the process")? {
            let mut at = used.start;
            while at < used.end {
                let want = usize::try_from(used.end - at).unwrap_or(usize::MAX).min(buffer.len());
                // A region may be unmapped during the read.
                let Ok(read) = memory.read_at(&mut buffer[..want], at) else { break };
                for (form, needle) in &forms {
                    if contains(&buffer[..read], needle) {
                        findings.push(Finding { place: format!("memory {range} ({name}) of process {pid}"), form });
                    }
                }
                if read == 0 {
                    break;
                }
                at += u64::try_from(read.min(CHUNK)).unwrap_or(u64::MAX);
            }
        }
    }
    Ok(findings)
}

/// The parts of `region` whose pages exist. Most of a process's address space is reserved only.
///
/// A page map has 8 bytes per page; bits 63 and 62 are set when the page is in RAM or in swap
/// (Documentation/admin-guide/mm/pagemap.rst of Linux).
fn used_ranges(page_map: &File, region: Range<u64>) -> std::io::Result<Vec<Range<u64>>> {
    let page = u64::try_from(rustix::param::page_size()).unwrap_or(u64::MAX);
    let mut used: Vec<Range<u64>> = Vec::new();
    let mut entries = vec![0; ENTRY_BYTES * 4096];
    let mut at = region.start;
    while at < region.end {
        let left = usize::try_from((region.end - at) / page).unwrap_or(usize::MAX).saturating_mul(ENTRY_BYTES);
        let want = left.min(entries.len());
        let read = page_map.read_at(&mut entries[..want], at / page * ENTRY_BYTES as u64)?;
        for entry in entries[..read].chunks_exact(ENTRY_BYTES) {
            // The flags are in the highest of eight little-endian bytes.
            if entry[ENTRY_BYTES - 1] & 0b1100_0000 != 0 {
                match used.last_mut() {
                    Some(last) if last.end == at => last.end = at + page,
                    _ => used.push(at..at + page),
                }
            }
            at += page;
        }
        if read < ENTRY_BYTES {
            break;
        }
    }
    Ok(used)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_secret_in_this_process_is_found_in_every_form() {
        let secret: Vec<u8> = (0..32_u32).map(|i| u8::try_from(i * 7 % 251).unwrap_or(0)).collect();
        let folder = tempfile::tempdir().unwrap();
        for (name, content) in [
            ("raw", [b"xx", secret.as_slice(), b"yy"].concat()),
            ("hex", hex::encode(&secret).into_bytes()),
            ("packed", [b"head".to_vec(), zstd::encode_all(secret.as_slice(), 3).unwrap(), b"foot".to_vec()].concat()),
            (
                "json",
                format!(
                    "{{\"k\":\"{}\"}}",
                    base64::engine::general_purpose::STANDARD.encode([b"a", secret.as_slice(), b"zz"].concat())
                )
                .into_bytes(),
            ),
        ] {
            std::fs::write(folder.path().join(name), content).unwrap();
        }
        let places: std::collections::BTreeSet<String> =
            search_files(folder.path(), &secret).unwrap().into_iter().map(|finding| finding.place).collect();
        assert_eq!(places.len(), 4, "{places:?}");
        assert!(!search_memory(std::process::id(), &secret).unwrap().is_empty());
        assert!(search_files(folder.path(), &[9; 32]).unwrap().is_empty());
    }
}
