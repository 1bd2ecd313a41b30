//! A full-screen view on the terminal. Dropping it, an error and a panic restore the terminal.

use std::io::{self, Write as _};
use std::sync::Once;

use comity_types::printable_line;
use crossterm::event::{Event, EventStream, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{
    BeginSynchronizedUpdate, Clear, ClearType, DisableLineWrap, EnableLineWrap, EndSynchronizedUpdate,
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use crossterm::{cursor, queue};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_stream::StreamExt as _;

use crate::failure::Failure;

static PANIC_HOOK: Once = Once::new();

/// A key that the view understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// `q`, Esc, Ctrl-C, or a signal to end.
    Quit,
    /// `s`: the next order.
    Sort,
    /// The view scrolled, or the terminal has another size.
    Repaint,
}

/// The alternate screen of the terminal.
pub(crate) struct Screen {
    keys: EventStream,
    interrupted: Signal,
    terminated: Signal,
    /// First line that is shown.
    top: usize,
    /// Lines of the last view, and how many of them fit.
    lines: usize,
    height: usize,
}

impl Screen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// [`Failure`] if it cannot be controlled.
    pub(crate) fn open() -> Result<Self, Failure> {
        PANIC_HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |panic| {
                restore();
                before(panic);
            }));
        });
        let listen = |kind| signal(kind).map_err(|error| unusable(&error));
        let (interrupted, terminated) = (listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?);
        enable_raw_mode().map_err(|error| unusable(&error))?;
        // From here on, dropping it restores the terminal.
        let screen = Self { keys: EventStream::new(), interrupted, terminated, top: 0, lines: 0, height: 0 };
        let mut out = io::stdout().lock();
        queue!(out, EnterAlternateScreen, DisableLineWrap, cursor::Hide)
            .and_then(|()| out.flush())
            .map_err(|error| unusable(&error))?;
        Ok(screen)
    }

    /// Shows the lines from the present position on, and `footer` in the last line.
    ///
    /// # Errors
    /// [`Failure`] if the terminal cannot be written.
    pub(crate) fn draw(&mut self, lines: &[String], footer: &str) -> Result<(), Failure> {
        let rows = crossterm::terminal::size().map_or(24, |(_, rows)| usize::from(rows));
        self.height = rows.saturating_sub(1).max(1);
        self.lines = lines.len();
        self.top = self.top.min(self.last_top());
        let mut out = io::stdout().lock();
        let mut paint = || -> io::Result<()> {
            queue!(out, BeginSynchronizedUpdate, cursor::MoveTo(0, 0))?;
            for line in lines.iter().skip(self.top).take(self.height) {
                write!(out, "{line}")?;
                queue!(out, Clear(ClearType::UntilNewLine))?;
                write!(out, "\r\n")?;
            }
            queue!(out, Clear(ClearType::FromCursorDown))?;
            queue!(out, cursor::MoveTo(0, u16::try_from(rows - 1).unwrap_or(u16::MAX)))?;
            write!(out, "{}", printable_line(footer))?;
            queue!(out, EndSynchronizedUpdate)?;
            out.flush()
        };
        paint().map_err(|error| unusable(&error))
    }

    /// Waits for a key.
    ///
    /// # Errors
    /// [`Failure`] if the terminal cannot be read.
    pub(crate) async fn key(&mut self) -> Result<Key, Failure> {
        loop {
            let event = tokio::select! {
                event = self.keys.next() => event,
                _ = self.interrupted.recv() => return Ok(Key::Quit),
                _ = self.terminated.recv() => return Ok(Key::Quit),
            };
            let key = match event {
                None => return Ok(Key::Quit),
                Some(Err(error)) => return Err(unusable(&error)),
                Some(Ok(Event::Resize(..))) => return Ok(Key::Repaint),
                Some(Ok(Event::Key(key))) if key.kind != KeyEventKind::Release => key,
                Some(Ok(_)) => continue,
            };
            let page = self.height.saturating_sub(1).max(1);
            match key.code {
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return Ok(Key::Quit),
                KeyCode::Char('q') | KeyCode::Esc => return Ok(Key::Quit),
                KeyCode::Char('s') => return Ok(Key::Sort),
                KeyCode::Up | KeyCode::Char('k') => self.top = self.top.saturating_sub(1),
                KeyCode::Down | KeyCode::Char('j') => self.top = (self.top + 1).min(self.last_top()),
                KeyCode::PageUp => self.top = self.top.saturating_sub(page),
                KeyCode::PageDown => self.top = (self.top + page).min(self.last_top()),
                KeyCode::Home => self.top = 0,
                KeyCode::End => self.top = self.last_top(),
                _ => continue,
            }
            return Ok(Key::Repaint);
        }
    }

    fn last_top(&self) -> usize {
        self.lines.saturating_sub(self.height)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    let mut out = io::stdout().lock();
    // If the terminal is gone, nothing is left to restore.
    let _ = queue!(out, EndSynchronizedUpdate, EnableLineWrap, LeaveAlternateScreen, cursor::Show);
    let _ = out.flush();
    let _ = disable_raw_mode();
}

fn unusable(error: &io::Error) -> Failure {
    Failure::configuration(format!("cannot control the terminal: {error}"))
        .remedy("send the output through a pipe: '| cat'")
}
