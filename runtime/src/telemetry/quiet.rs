//! Fewer lines where the same thing goes wrong again and again.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::layer::{Context, Filter};

/// Lines of one message in one window. More than one, for a message may be about two brokers.
const LINES: u32 = 3;
/// A window begins with its first line.
const WINDOW: Duration = Duration::from_secs(30);

/// Lets through a few warnings or errors of each place in the code, and all that is only information: that is told once for
/// each change or call. The places are those of the program, so their number is bounded.
#[derive(Default)]
pub(super) struct Quiet {
    windows: Mutex<HashMap<Identifier, Window>>,
}

struct Window {
    began: Instant,
    lines: u32,
}

impl Quiet {
    fn lets_through(&self, place: Identifier, now: Instant) -> bool {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let window = windows.entry(place).or_insert(Window { began: now, lines: 0 });
        if now.saturating_duration_since(window.began) >= WINDOW {
            *window = Window { began: now, lines: 0 };
        }
        window.lines = window.lines.saturating_add(1);
        window.lines <= LINES
    }
}

impl<S> Filter<S> for Quiet {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        *metadata.level() > Level::WARN || self.lets_through(metadata.callsite(), Instant::now())
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use tracing_subscriber::layer::SubscriberExt as _;
    use tracing_subscriber::{EnvFilter, Layer as _};

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_warning_that_repeats_is_told_a_few_times_and_information_always() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let layer = layer.with_filter(EnvFilter::new("info")).with_filter(Quiet::default());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for number in 0..100 {
                tracing::warn!(number, "no leader yet");
                tracing::info!(number, "submitted");
                tracing::debug!("hidden by the filter");
            }
            tracing::warn!("another");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        assert_eq!((count("no leader yet"), count("submitted"), count("another"), count("hidden")), (3, 100, 1, 0));
    }

    #[test]
    fn a_new_window_begins_after_the_last() {
        let callsite = tracing::metadata!(
            name: "test",
            target: "test",
            level: Level::WARN,
            fields: &[],
            callsite: &CALLSITE,
            kind: tracing::metadata::Kind::EVENT
        );
        let quiet = Quiet::default();
        let began = Instant::now();
        let through = |at: Duration| quiet.lets_through(callsite.callsite(), began + at);
        assert_eq!((0..10).filter(|_| through(Duration::ZERO)).count(), 3);
        assert!(!through(WINDOW - Duration::from_millis(1)));
        assert!(through(WINDOW));
    }

    static CALLSITE: Callsite = Callsite;

    struct Callsite;

    impl tracing::Callsite for Callsite {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}
        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("only its address is used")
        }
    }
}
