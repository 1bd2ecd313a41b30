//! Runs the commands of `docs/*.md` and compares what they print with what the pages show.
//!
//! Each page runs from top to bottom in one shell. A block of code has a language, and may have notes in an HTML comment
//! on the line above it, `<!-- docs: NOTE, NOTE -->`:
//!
//! | block | effect |
//! |---|---|
//! | `console` | a transcript: each line that begins with `$ ` is run, the lines below it must be its output |
//! | `sh` | commands: all are run, the last one must succeed |
//! | any other language | shown, not run |
//!
//! | note | effect |
//! |---|---|
//! | `federation` | the block starts `comity dev --state …`; pages without one get it before their first command |
//! | `no federation` | the page's commands need none; on the first block of the page |
//! | `as NAME` | runs as this user of the federation |
//! | `on NAME` | runs on a host of this name, which is empty at first and shares a network with the page's other hosts |
//! | `gpus` | on the first block of a host: it has four H100, by a stand-in for nvidia-smi |
//! | `terminal` | the output goes to a terminal |
//! | `exit N` | exit code of the block's last command; default 0 in `sh`, any in `console` |
//! | `numbers` | all numbers match |
//! | `background` | the last command keeps running; its first lines must be those shown |
//! | `not run: REASON` | shown only |
//!
//! Times, ids, hashes, ports and column widths may differ. A line `…` stands for any lines, and `…` at the end of a line
//! for any text. In a command, a word that ends in `…` stands for the last printed word that begins so, as a token that
//! the reader copies.

pub mod compare;
pub mod federation;
pub mod hosts;
pub mod links;
pub mod page;
pub mod run;
pub mod shell;
