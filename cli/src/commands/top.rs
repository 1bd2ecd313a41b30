//! `comity top`: GPU use, leases and queue, live on the terminal.

use std::io::IsTerminal as _;

use clap::Args;
use comity_runtime::BrokerChannel;

mod frame;

use self::frame::{Frame, Order};
use super::status::Observed;
use crate::clock::now_ms;
use crate::failure::Failure;
use crate::live::{ChangeSource, Changes, Key, Screen};
use crate::output::Format;
use crate::session::Session;

const TOP_EXAMPLES: &str = "\
Examples:
  comity top                     live; q quits, s sorts, arrows scroll
  comity top --once              print one frame
  comity top --once -o json

Reads every two seconds. In a pipe it prints one frame.
";
const FOOTER: &str = "q quits, s sorts, arrows scroll";

/// `comity top`.
#[derive(Debug, Args)]
#[command(after_help = TOP_EXAMPLES)]
pub struct TopArgs {
    /// Print one frame and exit
    #[arg(long)]
    once: bool,
}

impl TopArgs {
    /// Runs the command.
    ///
    /// # Errors
    /// [`Failure`] of a call that a retry cannot help, or if the terminal cannot be used.
    pub async fn run(&self, session: &Session) -> Result<(), Failure> {
        let channel = session.channel()?;
        let observed = Observed::read(session, &channel).await?;
        if self.once || session.format != Format::Table || !std::io::stdout().is_terminal() {
            return session.print(&Frame::new(observed, Order::default()));
        }
        live(session, &channel, observed).await
    }
}

async fn live(session: &Session, channel: &BrokerChannel, observed: Observed) -> Result<(), Failure> {
    let mut changes = Changes::new(channel.clone(), ChangeSource::Poll);
    let mut frame = Frame::new(observed, Order::default());
    let mut footer = FOOTER.to_owned();
    let mut screen = Screen::open()?;
    loop {
        let newer = {
            // The view stays responsive while the broker answers.
            let read = async {
                changes.after(0).await;
                Observed::read(session, channel).await
            };
            tokio::pin!(read);
            loop {
                screen.draw(&frame.sheet(now_ms()).lines(session.page()), &footer)?;
                tokio::select! {
                    newer = &mut read => break newer,
                    key = screen.key() => match key? {
                        Key::Quit => return Ok(()),
                        Key::Sort => frame.sort(frame.order().next()),
                        Key::Repaint => {}
                    }
                }
            }
        };
        match changes.judge(newer)? {
            Ok(observed) => (frame, footer) = (Frame::new(observed, frame.order()), FOOTER.to_owned()),
            Err(failure) => footer = format!("not up to date: {}", failure.reason),
        }
    }
}
