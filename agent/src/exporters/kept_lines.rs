//! The lines of some metrics, out of a page that arrives in parts.

/// Bytes of one page: 128 devices with 100 metrics of 500 bytes.
pub(super) const MAX_PAGE_BYTES: usize = 8 << 20;
/// Bytes of one line.
const MAX_LINE_BYTES: usize = 64 << 10;

/// Keeps the lines of the wanted metrics, and drops the others as they come.
pub(super) struct KeptLines<'n> {
    names: &'n [&'n str],
    kept: String,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
    bytes: usize,
}

impl<'n> KeptLines<'n> {
    pub(super) fn of(names: &'n [&'n str]) -> Self {
        Self { names, kept: String::new(), begun: Vec::new(), bytes: 0 }
    }

    /// Takes the next part of the page.
    ///
    /// # Errors
    /// A page or line that is too long, or a wanted line that is not UTF-8.
    pub(super) fn take(&mut self, part: &[u8]) -> Result<(), String> {
        self.bytes += part.len();
        if self.bytes > MAX_PAGE_BYTES {
            return Err(format!("its page is longer than {MAX_PAGE_BYTES} bytes"));
        }
        for piece in part.split_inclusive(|byte| *byte == b'\n') {
            if self.begun.len() + piece.len() > MAX_LINE_BYTES {
                return Err(format!("a line of its page is longer than {MAX_LINE_BYTES} bytes"));
            }
            self.begun.extend_from_slice(piece);
            if piece.ends_with(b"\n") {
                self.end_line()?;
            }
        }
        Ok(())
    }

    /// The kept lines, after the last part.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub(super) fn end(mut self) -> Result<String, String> {
        self.end_line()?;
        Ok(self.kept)
    }

    fn end_line(&mut self) -> Result<(), String> {
        if self.names.iter().any(|name| self.begun.starts_with(name.as_bytes())) {
            let line = str::from_utf8(&self.begun).map_err(|_| "its page is not UTF-8 text".to_owned())?;
            self.kept.push_str(line);
        }
        self.begun.clear();
        Ok(())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn kept(parts: &[&[u8]]) -> Result<String, String> {
        let mut lines = KeptLines::of(&["up", "down"]);
        for part in parts {
            lines.take(part)?;
        }
        lines.end()
    }

    #[test]
    fn wanted_lines_are_kept_however_the_page_is_cut() {
        let page = b"# TYPE up gauge\nup{a=\"\xc3\xa9\"} 1\nother 2\ndown 3";
        let wanted = "up{a=\"\u{e9}\"} 1\ndown 3";
        for size in 1..=page.len() {
            let parts: Vec<&[u8]> = page.chunks(size).collect();
            assert_eq!(kept(&parts).unwrap(), wanted, "in parts of {size}");
        }
        assert_eq!(kept(&[b"other \xff\nup 1\n"]).unwrap(), "up 1\n", "lines that nobody wants may be anything");
        assert!(kept(&[b"up \xff\n"]).unwrap_err().contains("UTF-8"));
    }

    #[test]
    fn pages_and_lines_are_bounded() {
        let line = [b"other ".as_slice(), &[b'x'; 1_000], b"\n"].concat();
        let lines = vec![line.as_slice(); MAX_PAGE_BYTES / line.len()];
        assert_eq!(kept(&lines).unwrap(), "", "nothing is kept of what nobody wants");
        assert!(kept(&[lines.as_slice(), &[line.as_slice()]].concat()).unwrap_err().contains("page is longer"));
        assert!(kept(&[&[b'x'; MAX_LINE_BYTES], b"x"]).unwrap_err().contains("line of its page"));
    }
}
