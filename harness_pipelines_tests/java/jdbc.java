import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Statement;

/**
 * Asks a server by JDBC: arguments are a driver's class, an address, a user and a password, and a schema whose tables
 * it lists with their columns; standard input has a statement on each line. Prints rows, their values between tabs.
 */
public final class jdbc {
    public static void main(String[] arguments) throws Exception {
        Class.forName(arguments[0]);
        try (Connection connection = DriverManager.getConnection(arguments[1], arguments[2], arguments[3]);
                Statement statement = connection.createStatement()) {
            DatabaseMetaData server = connection.getMetaData();
            print(server.getSchemas());
            print(server.getTables(null, arguments[4], "%", null));
            print(server.getColumns(null, arguments[4], "%", "%"));
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String sql = lines.readLine(); sql != null; sql = lines.readLine()) {
                print(statement.executeQuery(sql));
            }
        }
    }

    private static void print(ResultSet found) throws SQLException {
        try (ResultSet rows = found) { // the driver's connection fails to close while one is open
            int columns = rows.getMetaData().getColumnCount();
            while (rows.next()) {
                StringBuilder line = new StringBuilder();
                for (int i = 1; i <= columns; i++) {
                    line.append(i == 1 ? "" : "\t").append(rows.getString(i));
                }
                System.out.println(line);
            }
        }
    }
}
