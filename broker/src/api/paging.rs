//! Pages of lists. A token holds the last key of the previous page and is valid for one list only.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use comity_core::Refusal;
use comity_proto::v1;

/// Default page size.
const DEFAULT_SIZE: u32 = 100;
/// Maximum page size: 500 offer summaries stay far below the message limit.
const MAX_SIZE: u32 = 500;
/// Bytes of a token: the longest key is a DNS label.
const MAX_TOKEN_BYTES: usize = 256;

/// A requested page of one list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    list: &'static str,
    size: usize,
    after: Option<String>,
}

impl Page {
    /// Parses a page request for `list`.
    pub fn parse(page: Option<v1::PageRequest>, list: &'static str) -> Result<Self, Refusal> {
        let page = page.unwrap_or_default();
        let size = match page.size {
            0 => DEFAULT_SIZE,
            1..=MAX_SIZE => page.size,
            _ => {
                return Err(Refusal::invalid(
                    "page.size",
                    page.size,
                    "is out of range",
                    format!("use 0 to {MAX_SIZE}"),
                ));
            }
        };
        let after = if page.token.is_empty() { None } else { Some(Self::open(&page.token, list)?) };
        Ok(Self { list, size: size as usize, after })
    }

    fn open(token: &str, list: &str) -> Result<String, Refusal> {
        let key = Some(token)
            .filter(|token| token.len() <= MAX_TOKEN_BYTES)
            .and_then(|token| URL_SAFE_NO_PAD.decode(token).ok())
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .and_then(|text| Some(text.strip_prefix(list)?.strip_prefix(' ')?.to_owned()));
        key.ok_or_else(|| {
            Refusal::invalid(
                "page.token",
                token,
                "is not a token of this list",
                "send next_token of the page before, or nothing",
            )
        })
    }

    /// The key after which the page begins, as `parse` reads it; `None` for the first page.
    pub fn after<K, E>(&self, parse: impl FnOnce(&str) -> Result<K, E>) -> Result<Option<K>, E> {
        self.after.as_deref().map(parse).transpose()
    }

    /// Items of the page.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// The place of a page after which the list goes on from `last`; `None` for the last page.
    #[must_use]
    pub fn part(&self, last: Option<impl ToString>, revision: u64) -> v1::PageInfo {
        let next_token = last.map_or_else(String::new, |last| self.token(&last));
        v1::PageInfo { next_token, revision }
    }

    fn token(&self, last: &impl ToString) -> String {
        URL_SAFE_NO_PAD.encode(format!("{} {}", self.list, last.to_string()))
    }

    /// Takes one page of `items`, which start after the page's key; each item comes with its key.
    pub fn take<K: ToString, T>(&self, items: impl Iterator<Item = (K, T)>, revision: u64) -> (Vec<T>, v1::PageInfo) {
        let mut items = items.peekable();
        let (mut page, mut last) = (Vec::new(), None);
        while page.len() < self.size {
            let Some((key, item)) = items.next() else { break };
            last = Some(key);
            page.push(item);
        }
        let next_token = match (last, items.peek()) {
            (Some(last), Some(_)) => self.token(&last),
            _ => String::new(),
        };
        (page, v1::PageInfo { next_token, revision })
    }
}

#[cfg(test)]
mod tests {
    use comity_fuzz::fuzz;

    use super::*;

    fn parse_number(text: &str) -> Result<u32, Refusal> {
        text.parse().map_err(|_| Refusal::invalid("page.token", text, "is not a number", "send next_token"))
    }

    #[test]
    fn pages_cover_a_list_without_gaps() {
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let page = Page::parse(Some(v1::PageRequest { size: 3, token }), "numbers").expect("good");
            let after = page.after(parse_number).expect("our own token").map_or(0, |n| n + 1);
            let (items, info) = page.take((after..8).map(|n| (n, n)), 7);
            assert_eq!(info.revision, 7);
            seen.extend(items);
            token = info.next_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn tokens_of_pages() {
        let parse = |token: String| Page::parse(Some(v1::PageRequest { size: 1, token }), "numbers");
        let valid = ["numbers 3", "numbers campus", "numbers "].map(|text| text.as_bytes().to_vec()).to_vec();
        // The text is edited, not its base64, which would seldom decode.
        fuzz!("page_token", valid, move |bytes: &[u8]| {
            if let Err(refusal) = parse(String::from_utf8_lossy(bytes).into_owned()) {
                assert_eq!(refusal.field, "page.token");
            }
            let token = URL_SAFE_NO_PAD.encode(bytes);
            let Ok(page) = parse(token.clone()) else { return false };
            let Ok(Some(key)) = page.after(|key| Ok::<_, Refusal>(key.to_owned())) else { return false };
            let (items, info) = page.take([(key.clone(), ()), (key, ())].into_iter(), 7);
            assert_eq!((items.len(), info.next_token), (1, token), "a page that ends with this key has this token");
            true
        });
    }

    #[test]
    fn foreign_tokens_and_sizes_are_refused() {
        let parse = |size, token: &str| Page::parse(Some(v1::PageRequest { size, token: token.to_owned() }), "numbers");
        assert_eq!(parse(501, "").expect_err("size").field, "page.size");
        let foreign = URL_SAFE_NO_PAD.encode("letters 3");
        for bad in ["***", "AAAA", &foreign, &"A".repeat(300)] {
            assert_eq!(parse(1, bad).expect_err(bad).field, "page.token");
        }
    }
}
