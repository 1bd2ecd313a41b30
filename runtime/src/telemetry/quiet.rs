//! Fewer lines where the same thing goes wrong again and again.

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

/// Lines of one message in one window. More than one, for a message may be about two brokers.
const LINES: u32 = 3;
/// A window begins with its first line.
const WINDOW: Duration = Duration::from_secs(30);

/// A filter that lets through a few warnings or errors of each place in the code, and every line that is only
/// information: that is told once for each change or call. The places are those of the program, so their number is
/// bounded.
pub(super) struct Quiet {
    /// Decides which lines are wanted at all. It says so once for each place: a filter beside it would be asked every
    /// time.
    wanted: EnvFilter,
    windows: Mutex<HashMap<Identifier, Window>>,
}

struct Window {
    began: Instant,
    lines: u32,
}

impl Quiet {
    pub(super) fn new(wanted: EnvFilter) -> Self {
        Self { wanted, windows: Mutex::default() }
    }

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

impl<S> Filter<S> for Quiet
where
    EnvFilter: Filter<S>,
{
    fn enabled(&self, metadata: &Metadata<'_>, context: &Context<'_, S>) -> bool {
        Filter::enabled(&self.wanted, metadata, context)
    }

    fn callsite_enabled(&self, metadata: &'static Metadata<'static>) -> Interest {
        let wanted = Filter::<S>::callsite_enabled(&self.wanted, metadata);
        // A line that is held back after it was said to be always wanted would hold back the next one, of whatever
        // place.
        if wanted.is_always() && *metadata.level() <= Level::WARN { Interest::sometimes() } else { wanted }
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Filter::<S>::max_level_hint(&self.wanted)
    }

    fn event_enabled(&self, event: &Event<'_>, context: &Context<'_, S>) -> bool {
        let metadata = event.metadata();
        Filter::event_enabled(&self.wanted, event, context)
            && (*metadata.level() > Level::WARN || self.lets_through(metadata.callsite(), Instant::now()))
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        Filter::on_new_span(&self.wanted, attributes, id, context);
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        Filter::on_record(&self.wanted, id, values, context);
    }

    fn on_enter(&self, id: &Id, context: Context<'_, S>) {
        Filter::on_enter(&self.wanted, id, context);
    }

    fn on_exit(&self, id: &Id, context: Context<'_, S>) {
        Filter::on_exit(&self.wanted, id, context);
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        Filter::on_close(&self.wanted, id, context);
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
    fn a_warning_that_repeats_is_told_a_few_times_and_information_always() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone());
        let layer = layer.with_filter(Quiet::new(EnvFilter::new("info")));
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

    /// Places that are off cost nothing where the filter is asked once; h2 and openraft have thousands on the way of a
    /// call.
    #[test]
    fn a_place_that_is_off_is_asked_for_once() {
        let layer = tracing_subscriber::fmt::layer().with_filter(Quiet::new(EnvFilter::new("info,openraft=error")));
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
        let quiet = Quiet::new(EnvFilter::new("info"));
        let began = Instant::now();
        let through = |at: Duration| quiet.lets_through(callsite.callsite(), began + at);
        assert_eq!((0..10).filter(|_| through(Duration::ZERO)).count(), 3);
        assert!(!through(WINDOW - Duration::from_millis(1)));
        assert!(through(WINDOW));
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
