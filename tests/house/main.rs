//! The house: its rooms, the direction of imports, and what pages say of settings and errors.

mod rooms;
mod settings;
mod troubleshooting;
