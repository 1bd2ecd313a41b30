//! Limits the rate of repeated warnings and errors in the log.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Level, Metadata};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::{Context, Filter};

/// Lines per callsite and window. More than one, because a message may concern several brokers.
const LINES: u32 = 3;
/// Length of a window, which starts with its first line.
const WINDOW: Duration = Duration::from_secs(30);

/// Passes a few warnings and errors per callsite and window, and all lines of lower levels. The number of callsites in
/// a program bounds the memory.
pub(super) struct RateLimitFilter {
    /// Decides which lines are enabled at all. Wrapped rather than stacked, so that tracing caches its decision per
    /// callsite.
    inner: EnvFilter,
    windows: Mutex<HashMap<Identifier, Window>>,
}

struct Window {
    began: Instant,
    lines: u32,
}

impl RateLimitFilter {
    pub(super) fn new(inner: EnvFilter) -> Self {
        Self { inner, windows: Mutex::default() }
    }

    fn admit(&self, callsite: Identifier, now: Instant) -> bool {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        let window = windows.entry(callsite).or_insert(Window { began: now, lines: 0 });
        if now.saturating_duration_since(window.began) >= WINDOW {
            *window = Window { began: now, lines: 0 };
        }
        window.lines = window.lines.saturating_add(1);
        window.lines <= LINES
    }
}

impl<S> Filter<S> for RateLimitFilter
where
    EnvFilter: Filter<S>,
{
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        Filter::enabled(&self.inner, metadata, context)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        let interest = Filter::<S>::callsite_enabled(&self.inner, metadata);
        // Refusing a line of a callsite with interest "always" would also suppress the next line of any callsite.
        if interest.is_always() && *metadata.level() <= Level::WARN { Interest::sometimes() } else { interest }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Filter::<S>::max_level_hint(&self.inner)
    }

    fn event_enabled(&self, event: &Event<'_>, context: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        Filter::event_enabled(&self.inner, event, context)
            && (*metadata.level() > Level::WARN || self.admit(metadata.callsite(), Instant::now()))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        Filter::on_new_span(&self.inner, attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        Filter::on_record(&self.inner, id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        Filter::on_enter(&self.inner, id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        Filter::on_exit(&self.inner, id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        Filter::on_close(&self.inner, id, context);
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use tracing_subscriber::Layer as _;
    use tracing_subscriber::layer::SubscriberExt as _;

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
    fn limits_repeated_warnings_but_not_information() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let layer = layer.with_filter(RateLimitFilter::new(EnvFilter::new("info")));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            for number in 0..100 {
                tracing::warn!(number, "no leader yet");
                tracing::info!(number, "submitted");
                tracing::debug!("hidden by the filter");
            }
            tracing::warn!("another");
        });
        let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
        let count = |words: &str| text.lines().filter(|line| line.contains(words)).count();
        assert_eq!((count("no leader yet"), count("submitted"), count("another"), count("hidden")), (3, 100, 1, 0));
    }

    /// h2 and openraft have thousands of disabled callsites in the path of a call.
    #[test]
    fn caches_the_decision_for_disabled_callsites() {
        let layer =
            tracing_subscriber::fmt::layer().with_filter(RateLimitFilter::new(EnvFilter::new("info,openraft=error")));
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let interest = |level: &'static Metadata<'static>| {
                tracing::dispatcher::get_default(|dispatch| dispatch.register_callsite(level))
            };
            let metadata = |level: Level| -> &'static Metadata<'static> {
                Box::leak(Box::new(tracing::metadata!(
                    name: "test",
                    target: "test",
                    level: level,
                    fields: &[],
                    callsite: &CALLSITE,
                    kind: tracing::metadata::Kind::EVENT
                )))
            };
            assert!(interest(metadata(Level::DEBUG)).is_never());
            assert!(interest(metadata(Level::INFO)).is_always());
            assert!(interest(metadata(Level::WARN)).is_sometimes());
        });
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
        let filter = RateLimitFilter::new(EnvFilter::new("info"));
        let began = Instant::now();
        let admitted = |at: Duration| filter.admit(callsite.callsite(), began + at);
        assert_eq!((0..10).filter(|_| admitted(Duration::ZERO)).count(), 3);
        assert!(!admitted(WINDOW - Duration::from_millis(1)));
        assert!(admitted(WINDOW));
    }

    static CALLSITE: Callsite = Callsite;

    struct Callsite;

    impl tracing::Callsite for Callsite {
        fn set_interest(&self, _: Interest) {}
        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("only its address is used")
        }
    }
}
