//! Git's packet lines: four hexadecimal digits with the length, and the content.

/// Bytes of the length.
const HEAD: usize = 4;
/// The largest packet, with its length.
const MAX_PACKET: usize = 65_520;

/// One packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packet<'a> {
    /// `0000`: the end of a message.
    Flush,
    /// `0001`: the end of a section.
    Delimiter,
    /// `0002`: the end of a response.
    ResponseEnd,
    /// Content.
    Data(&'a [u8]),
}

impl<'a> Packet<'a> {
    /// The content without the end of the line; `None` for the others.
    pub(super) fn line(self) -> Option<&'a [u8]> {
        match self {
            Self::Data(data) => Some(data.strip_suffix(b"\n").unwrap_or(data)),
            _ => None,
        }
    }
}

/// The packets of a whole response. Ends after the first one that cannot be read, with an `Err`.
#[derive(Debug, Clone)]
pub(super) struct Packets<'a> {
    rest: &'a [u8],
}

impl<'a> Packets<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    fn read(&mut self) -> Option<Packet<'a>> {
        let (head, rest) = self.rest.split_at_checked(HEAD)?;
        let length = length(head)?;
        let packet = match length {
            0 => Packet::Flush,
            1 => Packet::Delimiter,
            2 => Packet::ResponseEnd,
            HEAD..=MAX_PACKET => {
                let (data, after) = rest.split_at_checked(length - HEAD)?;
                self.rest = after;
                return Some(Packet::Data(data));
            }
            _ => return None,
        };
        self.rest = rest;
        Some(packet)
    }
}

impl<'a> Iterator for Packets<'a> {
    type Item = Result<Packet<'a>, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let packet = self.read();
        if packet.is_none() {
            self.rest = &[];
        }
        Some(packet.ok_or(()))
    }
}

/// The length that a head says; `None` if it is none.
fn length(head: &[u8]) -> Option<usize> {
    let is_hex = head.iter().all(u8::is_ascii_hexdigit);
    usize::from_str_radix(std::str::from_utf8(head).ok().filter(|_| is_hex)?, 16).ok()
}

/// The length of the first message, with the packet that ends it; `None` if that has not come yet. `looked_at` are bytes of
/// whole packets that an earlier call has seen. What is no packet ends a message, too: its reader refuses it.
pub(super) fn message_length(bytes: &[u8], looked_at: &mut usize) -> Option<usize> {
    loop {
        let rest = bytes.get(*looked_at..)?;
        let head = rest.first_chunk::<HEAD>()?;
        match length(head) {
            Some(1 | 2) => *looked_at += HEAD,
            Some(length @ HEAD..=MAX_PACKET) if rest.len() >= length => *looked_at += length,
            Some(HEAD..=MAX_PACKET) => return None,
            Some(0) => return Some(*looked_at + HEAD),
            _ => return Some(bytes.len()),
        }
    }
}

/// Writes a request.
#[derive(Debug, Default)]
pub(super) struct PacketWriter(Vec<u8>);

impl PacketWriter {
    /// A line of at most some hundred bytes.
    pub(super) fn line(&mut self, text: &str) -> &mut Self {
        self.0.extend(format!("{:04x}{text}\n", text.len() + HEAD + 1).into_bytes());
        self
    }

    pub(super) fn delimiter(&mut self) -> &mut Self {
        self.0.extend(b"0001");
        self
    }

    /// The request, ended.
    pub(super) fn end(&mut self) -> Vec<u8> {
        self.0.extend(b"0000");
        std::mem::take(&mut self.0)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let request = PacketWriter::default().line("command=ls-refs").delimiter().line("peel").end();
        assert_eq!(request, b"0014command=ls-refs\n00010009peel\n0000");
        let packets: Vec<Packet<'_>> = Packets::new(&request).map(|packet| packet.unwrap()).collect();
        let lines: Vec<_> = packets.iter().map(|packet| packet.line()).collect();
        assert_eq!(lines, [Some(&b"command=ls-refs"[..]), None, Some(b"peel"), None]);
        assert_eq!((packets[1], packets[3]), (Packet::Delimiter, Packet::Flush));
    }

    #[test]
    fn a_message_ends_with_a_flush() {
        let (message, next) = (b"0014command=ls-refs\n00010009peel\n0000", b"0009more\n");
        let both = [&message[..], next].concat();
        let mut looked_at = 0;
        for end in 0..both.len() {
            let expected = (end >= message.len()).then_some(message.len());
            assert_eq!(message_length(&both[..end], &mut looked_at), expected, "{end}");
        }
        assert_eq!(message_length(b"fatal: no such repository", &mut 0), Some(25));
    }

    #[test]
    fn made_up_packets() {
        for bad in ["0003", "zzzz", "+014", "0014short", "fff1", "00"] {
            assert!(Packets::new(bad.as_bytes()).any(|packet| packet.is_err()), "{bad}");
        }
        let valid = vec![b"0009peel\n000100000002".to_vec(), b"0004".to_vec()];
        fuzz!("git_packets", valid, |bytes: &[u8]| {
            assert!(message_length(bytes, &mut 0).is_none_or(|length| length <= bytes.len()));
            Packets::new(bytes).all(|packet| packet.is_ok())
        });
    }
}
