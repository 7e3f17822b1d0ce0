"""Local servers that speak as the Hub and S3 do, and count what they serve."""
