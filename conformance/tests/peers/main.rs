//! Weir against real peers. The suites are one program, so that they run side by side: they mostly wait, for
//! guests, leases and graces. The test harness runs as many tests at a time as there are processors; with
//! more (`--test-threads`), leases expire unintentionally.

mod attributes;
mod check;
mod client_state;
mod exports;
mod interop;
mod kernel;
mod kills;
mod libnfs;
mod locks;
mod mount;
mod pjdfstest;
mod power_cuts;
mod scenarios;
