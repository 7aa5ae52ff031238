//! The house: its rooms in `src` and `csrc`, the direction of imports, and what pages say of settings and errors.

mod circles;
mod csrc;
mod rooms;
mod settings;
mod troubleshooting;
