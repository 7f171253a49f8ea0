"""The service beside a session and beside other servers, and what hostile requests cost it."""
